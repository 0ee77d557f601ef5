# SPDX-License-Identifier: Apache-2.0
"""What all commands share: exit codes, arguments that name themselves when wrong, text or JSON, errors."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import calrt

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "Commands",
    "MissingError",
    "Parser",
    "UsageError",
    "add_command",
    "add_device_flags",
    "emit",
    "error_document",
    "fail",
    "number",
    "open_device",
    "path",
    "whole_number",
]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EXIT_CODES = """exit codes:
  0    it went well
  1    it failed, or what was checked does not hold; stderr says why in one line
  2    a wrong command line, or something is missing: an extra, a model that cannot be fetched
  130  interrupted (Ctrl-C)
"""


class UsageError(Exception):
    """A wrong command line; the text names the option."""


class MissingError(Exception):
    """Something that has to be installed or fetched first."""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of ending the process, so that errors can be JSON too."""

    def error(self, message: str) -> NoReturn:
        """One line that names the option and says where help is."""
        raise UsageError(f"{message}; see {self.prog} -h")


Commands = Any
"""What `add_subparsers` returns; argparse has no public name for its type."""


def add_command(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    about: str = "",
    examples: str = "",
) -> Parser:
    """A command with `--json` and a help that ends in examples and exit codes."""
    epilog = f"examples:\n{examples}\n{EXIT_CODES}" if examples else EXIT_CODES
    parser: Parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.{about and ' '}{about}",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, errors too")
    parser.set_defaults(command=command, parser=parser)
    return parser


def add_device_flags(parser: argparse.ArgumentParser, default: str = "cpu") -> None:
    """-dev, --allow-unverified and --evidence: how the device is opened."""
    parser.add_argument(
        "-dev",
        "--device",
        default=default,
        metavar="SPEC",
        help=f"what calrt.open() takes: cpu, mock:bare, /path/libcald_x.so:0 (default {default})",
    )
    parser.add_argument(
        "--allow-unverified",
        action="store_true",
        help="use capabilities of level C1 and C2 too; C3 and C4 never",
    )
    parser.add_argument(
        "--evidence",
        type=path,
        metavar="PATH",
        help="recorded evidence, a file or a folder (default: CALRT_EVIDENCE or the user's cache)",
    )


def open_device(options: argparse.Namespace) -> calrt.Device:
    """The device of `add_device_flags`, with --threads where the command has it."""
    threads = getattr(options, "threads", None)
    own: dict[str, Any] = {} if threads is None else {"threads": threads}
    try:
        return calrt.open(
            options.device, allow_unverified=options.allow_unverified, evidence=options.evidence, **own
        )
    except calrt.InvalidArgumentError as error:
        if threads is None or "threads" not in str(error):
            raise
        raise UsageError(
            f"argument -t/--threads: of the cpu device alone, {options.device} has no threads to set"
        ) from error


def path(text: str) -> str:
    """The type of an option that names a file or a folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path: the name of a file or a folder is due")
    return text


def whole_number(low: int, high: int = (1 << 31) - 1) -> Callable[[str], int]:
    """The type of an option: a whole number of low..high."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number: {low}..{high} is due") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is outside {low}..{high}")
        return value

    return parse


def number(low: float, high: float = math.inf) -> Callable[[str], float]:
    """The type of an option: a finite number of `low` or more, of `high` at most."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number: {low:g} or more is due") from None
        if not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number of {low:g} or more")
        if value > high:
            raise argparse.ArgumentTypeError(f"{text} is more than {high:g}")
        return value

    return parse


def emit(options: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    """The document as JSON with --json, else the text."""
    print(_json(document) if options.json else text)


def _json(document: dict[str, Any]) -> str:
    """Readable where stdout can take it; else, as with a name of a file that is no UTF-8, in escapes."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(document, indent=2)
    return text


def fail(error: BaseException, exit_code: int, as_json: bool) -> int:
    """One line on stderr, or a JSON document {"error": ...} on stdout; the exit code."""
    message = str(error) or type(error).__name__
    if as_json:
        print(_json(error_document(error, exit_code)))
    else:
        print(f"calrt: {' '.join(message.splitlines())}", file=sys.stderr)
    return exit_code


def error_document(error: BaseException, exit_code: int) -> dict[str, Any]:
    """{"error": ...}, as `--json` shows it."""
    message = str(error) or type(error).__name__
    about: dict[str, Any] = {"message": message, "exit_code": exit_code}
    if isinstance(error, calrt.CalrtError):
        about |= {
            "message": error.message or message,
            "status": error.code.name,
            "code": int(error.code),
            "native_code": error.native_code,
            "where": error.where,
            "device": error.device,
            "recovery": error.recovery,
        }
    return {"error": about}
