# SPDX-License-Identifier: Apache-2.0
"""calrt-server: from a command line to a running server.

Exit codes: 0 fine, 1 a wrong command line or a model that cannot be loaded, 2 something is missing that has
to be fetched or installed; the line on stderr names it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

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
        path = _find_model(config.model, config.demo)
        listener = listen(config.host, config.port)
    except _Problem as problem:
        return _fail(problem.text, problem.code)
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(f"cannot listen on {config.host} port {config.port}: {reason}", EXIT_WRONG)
    with listener:
        return serve(config, path, listener)


def _find_model(model: str, demo: bool) -> str:
    """What to load. Raises _Problem with the line to print."""
    if model and demo:
        raise _Problem("-m and --demo exclude each other; give one", EXIT_WRONG)
    if not model and not demo:
        raise _Problem("no model: give -m FILE.gguf, or --demo for the demo model (-h explains)", EXIT_WRONG)
    if not demo:
        return model
    from calrt.model_cache import model_path

    path = model_path(_DEMO_MODEL)
    if path is None:
        raise _Problem(f"the demo model is not here: run calrt model fetch {_DEMO_MODEL}", EXIT_MISSING)
    return str(path)


class _Problem(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


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
