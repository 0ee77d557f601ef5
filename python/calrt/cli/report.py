# SPDX-License-Identifier: Apache-2.0
"""`calrt report`: one redacted file about a device for its vendor, and the replay of one."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import calrt
from calrt.cli.output import EXIT_FAILED, Commands, UsageError, emit, number, path
from calrt.cli.output import add_command as new_command

if TYPE_CHECKING:
    from calrt.report.replay import Replayed

__all__ = ["add_command"]

_PATIENCE = 60.0

_ABOUT = """

It has versions, capabilities with their levels, the status map, recorded evidence, the last jobs, a trace,
the log, and the open questions to the vendor that it bears on. With --package it runs four short prompts of
random token ids. The file has no host, user, path, secret or address, which this terminal shows; nothing of
what jobs computed either, unless --with-data. The device is used in a process of its own with a deadline: one
that hangs or dies makes a report that says so, and exit code 1."""

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
    parser.add_argument("--force", action="store_true", help="replace an --output that exists")
    parser.add_argument(
        "--with-data", action="store_true", help="with what jobs were given and gave, for a replay"
    )
    parser.add_argument(
        "--timeout", type=number(0.1, 1e6), default=_PATIENCE, metavar="S", help="for each step on the device"
    )
    parser.add_argument("--replay", type=path, metavar="REPORT", help="replay the run of a report on mock")


def _report(options: argparse.Namespace) -> int:
    with _ended_tidily():
        return _made_or_replayed(options)


@contextmanager
def _ended_tidily() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process, but not before its temporary files are gone."""
    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for each in ours:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])


def _made_or_replayed(options: argparse.Namespace) -> int:
    if options.replay is not None:
        if options.driver or options.package or options.record:
            raise UsageError("--replay takes a report alone: the run is in it")
        return _replay(options)
    from calrt.report import make

    if not options.force and os.path.lexists(options.output):
        raise UsageError(f"--output {options.output} exists: name another, or let --force replace it")
    driver = options.driver or ("calrt076" if "calrt076" in calrt.drivers() else "cpu")
    _check_driver(driver)
    _check_package(options.package)
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


def _check_driver(spec: str) -> None:
    """A typo is no finding about a device. One that is there and does not open is."""
    plain = spec.removeprefix("isolate:")
    folder, _, last = plain.rpartition("/")
    name = last.partition(":")[0]
    if plain.startswith("/"):
        if not Path(folder, name).is_file():
            raise UsageError(f"report {spec}: there is no file {folder}/{name}")
    elif folder:
        raise UsageError(f"report {spec}: a driver's name, or an absolute path, is due")
    elif name not in calrt.drivers():
        known = ", ".join(calrt.drivers())
        raise UsageError(
            f"report {spec}: there is no driver {name!r}: {known} (CALRT_DRIVER_PATH adds folders)"
        )


def _check_package(package: str | None) -> None:
    from calrt.model_fetch import model_path
    from calrt.presets import PRESETS, preset_name

    if package is None:
        return
    name = preset_name(package)
    if name is not None:
        if name not in PRESETS:
            raise UsageError(f"--package {package}: there is no preset {name!r}: {', '.join(PRESETS)}")
    elif not os.path.exists(package) and model_path(package) is None:
        raise UsageError(f"--package {package}: no such package directory, GGUF file or fetched model")


def _replay(options: argparse.Namespace) -> int:
    from calrt.report.replay import replay

    with _steps(options.json) as progress:
        found = replay(options.replay, progress=progress)
    lines = [f"request {at}: {row['verdict']}" for at, row in enumerate(found.requests, 1)]
    lines += [f"  {text}" for text in found.told]
    lines.append(f"from the record: {found.jobs} jobs, {found.calls} failed calls; {found.diverged} differ")
    lines.append(_verdict(found))
    emit(options, asdict(found) | {"same": found.same}, "\n".join(lines))
    return 0 if found.same else EXIT_FAILED


def _verdict(found: Replayed) -> str:
    if not found.same:
        return f"not the same: {found.why}"
    if not found.diverged:
        return "the same"
    # Without data in the report there are hashes of whole outputs, which count padding, too.
    return (
        f"the same tokens; {found.diverged} output hashes or calls differ from the record, "
        "and the outputs themselves were not recorded"
    )


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
