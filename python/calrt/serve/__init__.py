# SPDX-License-Identifier: Apache-2.0
"""calrt's serving layer. `Engine` and `create_app` are loaded when first asked for.

    engine = calrt.serve.Engine.open(model)          # inside a running event loop: async with engine
    app = calrt.serve.create_app(engine)             # an ASGI application

Needs the extra `calrt[serve]`; `import calrt` does not come here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine as Engine
    from .http import create_app as create_app

__all__ = ["Engine", "create_app"]

_HOME = {"Engine": ".engine", "create_app": ".http"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
