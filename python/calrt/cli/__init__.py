# SPDX-License-Identifier: Apache-2.0
"""The `calrt` command: one file here per subcommand.

Exit codes: 0 it went well, 1 it failed, 2 a wrong command line or something missing, 130 interrupted. With
`--json` there is one JSON document on stdout, also for an error: {"error": {...}}.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

import calrt
from calrt.cli import bench, caps, devices, model, probe, report, run
from calrt.cli.output import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    MissingError,
    Parser,
    UsageError,
    fail,
)

__all__ = ["main"]

_EPILOG = f"""examples:
  calrt devices                              what can be opened here
  calrt caps -dev cpu                        what a device can do, and how well that is known
  calrt run -m preset:tiny -dev mock         made-up words from a mock device, without any model
  calrt run -m preset:tiny --requests 50     a random workload that must end with every KV lane free
  calrt model fetch smollm2                  get the demo model, once
  calrt run -m smollm2 -p "Once upon a time" -n 32 --temp 0
  calrt bench copy                           what a transfer costs, beside a plain copy
  calrt conformance mock                     hold a driver to the rules of the driver ABI
  calrt probe all -dev mock                  ask a device what is open about it
  calrt report mock --package preset:tiny    one redacted file to send to the vendor
  calrt serve -m smollm2 --port 8080         the same as calrt-server

Each command has a help of its own: calrt run -h

{EXIT_CODES}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `calrt`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # As argparse takes it, which is content with the beginning of a flag.
    as_json = words[:1] != ["serve"] and any(len(word) > 2 and "--json".startswith(word) for word in words)
    _prepare_streams()
    try:
        try:
            return _run(words)
        finally:
            _flush()
    except KeyboardInterrupt:
        return _fail(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED, as_json)
    except BrokenPipeError:
        _give_up_stdout()
        return EXIT_FAILED
    except (UsageError, MissingError, ImportError) as error:
        return _fail(error, EXIT_USAGE, as_json)
    except (calrt.CalrtError, OSError, ValueError) as error:
        if _was_interrupted(error):  # and then could not be closed: a job hangs
            return _fail(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED, as_json)
        return _fail(error, EXIT_FAILED, as_json)


def _run(words: list[str]) -> int:
    if words[:1] == ["serve"]:  # its flags are calrt-server's own
        from calrt.serve.cli import main as serve

        return serve(words[1:])
    parser = make_parser()
    options, unknown = parser.parse_known_args(words)
    if unknown:
        named: Parser = getattr(options, "parser", parser)  # the command's own help lists what it takes
        named.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.version:
        print(f"calrt {calrt.__version__}")
        return 0
    command: Callable[[argparse.Namespace], int] | None = getattr(options, "command", None)
    if command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    return command(options)


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _prepare_streams() -> None:
    """Makes all three usable, however the process was started.

    One that was closed then takes everything and gives nothing; its number is taken, so that no file or pipe
    gets what drivers print. What stdout's encoding has not is written as an escape.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: `number`
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  it lives as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush() -> None:
    sys.stdout.flush()


def _fail(error: BaseException, exit_code: int, as_json: bool) -> int:
    """`fail`, also where stdout takes nothing (a full disk): then a line on stderr is what is left."""
    try:
        _flush()
        if as_json:
            fail(error, exit_code, as_json)
            _flush()
            return exit_code
    except OSError:
        _give_up_stdout()
    return fail(error, exit_code, as_json=False)


def make_parser() -> Parser:
    """The command line of `calrt`."""
    parser = Parser(
        prog="calrt",
        description="The runtime for the Calculet NPU, and a cpu device that runs the same models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    from calrt import conformance  # which is also used without the command line, and needs parts of it

    for command in (devices, caps, run, bench, conformance, probe, report, model):
        command.add_command(commands)
    commands.add_parser("serve", help="start the server; `calrt serve -h` lists its flags", add_help=False)
    return parser


def _give_up_stdout() -> None:
    """The reader is gone (`calrt caps | head -1`) or the disk full: Python must not say so when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
