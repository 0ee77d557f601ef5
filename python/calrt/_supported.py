# SPDX-License-Identifier: Apache-2.0
"""Refuses an interpreter that calrt does not run in with one clear line, before anything else is loaded.

The native module could not say so itself: initialised in a sub-interpreter it waits for ever for the GIL.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _in_sub_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, before
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() != interpreters.get_main())
    return False  # a Python without sub-interpreters


if "t" in getattr(sys, "abiflags", ""):
    raise ImportError(
        "calrt needs a CPython with the GIL: free-threaded builds (python3.13t and later) are not "
        "supported yet; use the build without the t"
    )
if _in_sub_interpreter():
    raise ImportError("calrt runs in the main interpreter only, not in a sub-interpreter: use a process")
