# SPDX-License-Identifier: Apache-2.0
"""calrt-server: from a command line to a running server.

Exit codes: 0 fine, 1 a wrong command line or a model that cannot be loaded, 2 something is missing that has
to be installed; the line on stderr names it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flags import Config

EXIT_WRONG = 1
EXIT_MISSING = 2
_DEMO_MODEL = "smollm2"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `calrt-server` and `calrt serve`; returns the exit code."""
    try:
        from .flags import FlagError, parse, usage
        from .process import listen, serve
    except ImportError as error:
        missing = error.name or str(error)
        return _fail(f"the Python package {missing} is missing: pip install 'calrt[serve]'", EXIT_MISSING)
    try:
        config, warnings = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
    except FlagError as error:
        return _fail(str(error), EXIT_WRONG)
    if config.help:
        sys.stdout.write(usage())
        return 0
    if config.version:
        from calrt import __version__

        print(f"calrt-server {__version__}")
        return 0
    _set_up_logging(config.verbose)
    for warning in warnings:
        logging.getLogger("calrt.serve").warning("%s", warning)
    try:
        config = _with_model(config)
        listener = listen(config.host, config.port)
    except _Problem as problem:
        return _fail(str(problem), EXIT_WRONG)
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(f"cannot listen on {config.host} port {config.port}: {reason}", EXIT_WRONG)
    with listener:
        return serve(config, config.model, listener)


def _with_model(config: Config) -> Config:
    """The config with what to load. Raises _Problem with the line to print."""
    if config.model and config.demo:
        raise _Problem("-m and --demo exclude each other; give one")
    if not config.model and not config.demo:
        raise _Problem("no model: give -m FILE.gguf, or --demo for the demo model (-h explains)")
    if not config.demo:
        return config
    from msgspec.structs import replace

    from calrt.model_cache import model_path

    path = model_path(_DEMO_MODEL)
    if path is not None:
        return replace(config, model=str(path))
    device = "mock" if config.device == "cpu" else config.device
    driver, _, name = device.partition(":")
    preset = f"preset:{name}" if driver == "mock" and name else "preset:tiny"
    print(
        f"calrt-server: the demo model is not here, so {preset} runs on the {device} device, in made-up "
        f"words (calrt model fetch {_DEMO_MODEL} gets the model)",
        file=sys.stderr,
    )
    return replace(config, model=preset, device=device)


class _Problem(Exception):
    """What is wrong with the command line."""


def _set_up_logging(verbose: bool) -> None:
    from calrt.logs import IdFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(IdFormatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for chatty in ("uvicorn", "asyncio", "httpx"):
        logging.getLogger(chatty).setLevel(logging.INFO if verbose else logging.WARNING)


def _fail(text: str, code: int) -> int:
    print(f"calrt-server: {text}", file=sys.stderr)
    return code
