# SPDX-License-Identifier: Apache-2.0
"""`calrt report`: one redacted file about a device for its vendor, and the replay of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import calrt
from calrt.cli.output import EXIT_FAILED, Commands, UsageError, emit, number, path
from calrt.cli.output import add_command as new_command

__all__ = ["add_command"]

_PATIENCE = 60.0

_ABOUT = """

It has versions, capabilities with their levels, the status map, recorded evidence, the last jobs, a trace,
the log, and the open questions to the vendor that it bears on. With --package it runs four short prompts of
random token ids. It has no host, user, path, secret or address; nothing of what jobs computed either, unless
--with-data. The device is used in a process of its own with a deadline: one that hangs or dies makes a report
that says so, and exit code 1."""

_EXAMPLES = """  calrt report calrt076 --package /models/qwen3 --output report.zip
  calrt report mock --package preset:tiny --with-data
  calrt report cpu --record run.jsonl           with a record that was made elsewhere
  calrt report --replay report.zip              the run of a report again, on mock, without the device
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt report`."""
    parser = new_command(
        commands,
        "report",
        _report,
        summary="make one redacted file about a device, to send to its vendor",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "driver", nargs="?", metavar="DRIVER", help="what calrt.open() takes (default: calrt076, or cpu)"
    )
    parser.add_argument(
        "--package", type=path, metavar="P", help="what to load and run: a package, preset:NAME"
    )
    parser.add_argument(
        "--record", type=path, action="append", default=[], metavar="FILE", help="a record to send along"
    )
    parser.add_argument(
        "--output", type=path, default="calrt-report.zip", metavar="FILE", help="default calrt-report.zip"
    )
    parser.add_argument(
        "--with-data", action="store_true", help="with what jobs were given and gave, for a replay"
    )
    parser.add_argument(
        "--timeout", type=number(0.1, 1e6), default=_PATIENCE, metavar="S", help="for each step on the device"
    )
    parser.add_argument("--replay", type=path, metavar="REPORT", help="replay the run of a report on mock")


def _report(options: argparse.Namespace) -> int:
    if options.replay is not None:
        if options.driver or options.package or options.record:
            raise UsageError("--replay takes a report alone: the run is in it")
        return _replay(options)
    from calrt.report import make

    driver = options.driver or ("calrt076" if "calrt076" in calrt.drivers() else "cpu")
    with _steps(options.json) as progress:
        made = make(
            driver,
            package=options.package,
            records=options.record,
            output=options.output,
            with_data=options.with_data,
            timeout=options.timeout,
            progress=progress,
        )
    size = sum(made.files.values())
    lines = [
        f"{made.output}: {len(made.files)} files, {size / 1024:.0f} KiB unpacked, in {made.seconds:.1f} s",
        f"the device: {made.device}",
        f"{made.open_questions} open questions to the vendor are in it; look into it before you send it",
    ]
    emit(options, asdict(made) | {"ok": made.ok}, "\n".join(lines))
    return 0 if made.ok else EXIT_FAILED


def _replay(options: argparse.Namespace) -> int:
    from calrt.report.replay import replay

    with _steps(options.json) as progress:
        found = replay(options.replay, progress=progress)
    lines = [f"request {at}: {row['verdict']}" for at, row in enumerate(found.requests, 1)]
    lines += [f"  {text}" for text in found.told]
    lines.append(f"from the record: {found.jobs} jobs, {found.calls} failed calls; {found.diverged} differ")
    if found.diverged and not found.with_data:
        lines.append("their data is not in the report: padding counts too, the tokens decide")
    lines.append("the same" if found.same else f"not the same: {found.why}")
    emit(options, asdict(found) | {"same": found.same}, "\n".join(lines))
    return 0 if found.same else EXIT_FAILED


@contextmanager
def _steps(silent: bool) -> Iterator[Callable[[str], object]]:
    """One line on a terminal that names the step; elsewhere a line for each kind of step."""
    stream, last = sys.stderr, [""]
    if silent:
        yield lambda step: None
        return
    if not stream.isatty():

        def line(step: str) -> None:
            kind = step.split(" ")[0]
            if kind != last[0]:
                print(f"report: {kind}", file=stream, flush=True)
            last[0] = kind

        yield line
        return
    try:
        yield lambda step: print(f"\r\x1b[Kreport: {step}", end="", file=stream, flush=True)
    finally:
        print("\r\x1b[K", end="", file=stream, flush=True)
