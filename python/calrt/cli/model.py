# SPDX-License-Identifier: Apache-2.0
"""`calrt model fetch`: the demo model."""

from __future__ import annotations

import argparse

from calrt.cli.output import Commands, MissingError, UsageError, emit
from calrt.cli.output import add_command as new_command

__all__ = ["add_command"]

_EXAMPLES = """  calrt model fetch smollm2         98 MB, once; prints where it is
  calrt run -m smollm2 -p "Once upon a time"
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt model`."""
    model = commands.add_parser("model", help="models: fetch the demo model")
    actions = model.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    fetch = new_command(
        actions,
        "fetch",
        _fetch,
        summary="download a known model into the user's cache, once",
        about="CALRT_CACHE names another folder.",
        examples=_EXAMPLES,
    )
    fetch.add_argument("name", help="smollm2 (SmolLM2-135M-Instruct, Apache-2.0, 98 MB)")
    fetch.add_argument("-q", "--quiet", action="store_true", help="no progress, no path")


def _fetch(options: argparse.Namespace) -> int:
    from calrt.model_fetch import MODELS, ModelFetchError, fetch
    from calrt.progress import ConsoleProgress, silent

    if options.name not in MODELS:
        raise UsageError(f"argument name: there is no model {options.name!r} to fetch: {', '.join(MODELS)}")
    try:
        if options.quiet or options.json:
            path = fetch(options.name, silent)
        else:
            with ConsoleProgress() as progress:
                path = fetch(options.name, progress)
    except ModelFetchError as error:
        raise MissingError(str(error)) from error
    if options.json or not options.quiet:
        emit(options, {"name": options.name, "path": str(path)}, str(path))
    return 0
