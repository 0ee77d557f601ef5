# SPDX-License-Identifier: Apache-2.0
"""`calrt bench ab`: the SDK's own loop against calrt with one and with two jobs in flight."""

from __future__ import annotations

import argparse
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from calrt.cli.driver_lines import few_lines
from calrt.cli.output import (
    EXIT_FAILED,
    Commands,
    emit,
    error_document,
    fail,
    number,
    path,
    whole_number,
)
from calrt.cli.output import add_command as new_command
from calrt.cli.recording import Recording
from calrt.progress import ConsoleProgress

if TYPE_CHECKING:
    from calrt.bench_ab import Report

__all__ = ["add_subject"]

_WAIT_S = 5.0

_ABOUT = """

Arm A runs and waits at once without calrt: by the SDK's own infer() and Wait() where the driver brings such a
loop, else by the driver's bare table. Arm B is calrt with one job in flight, arm C with two, of as many
sequences. All run the same steps, in the order A B C C B A. Outputs are compared first: one bit that differs
refuses the figures. Then each ratio of times stands with its 95 % confidence interval (Student's t of paired
log ratios): faster or slower if it lies on one side of 1, equal if it lies within 2 % of it, else undecided,
and so with fewer than 3 rounds. Exit code 1 if refused, or if an arm fails or hangs."""

_EXAMPLES = """  calrt bench ab -dev mock
  calrt bench ab -dev calrt076 --package DIR --steps 256 --rounds 10 --record evidence.json
  calrt bench ab -dev calrt076 --no-isolate       calrt in this process, as arm A is in its own
"""


def add_subject(subjects: Commands) -> None:
    """Adds `calrt bench ab`."""
    parser = new_command(
        subjects,
        "ab",
        _ab,
        summary="compare the SDK's own loop with calrt, one and two jobs in flight",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "-dev", "--device", default="mock", metavar="SPEC", help="what calrt.open() takes (default mock)"
    )
    parser.add_argument(
        "--package", default="preset:tiny", type=path, help="what to load (default preset:tiny)"
    )
    parser.add_argument(
        "--steps", type=whole_number(2, 1 << 16), default=64, help="decode steps of a block (default 64)"
    )
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=5, help="rounds of A B C C B A (default 5)"
    )
    parser.add_argument(
        "--timeout",
        type=number(0.1, 1e6),
        metavar="SECONDS",
        help="for each block of arm A, its load, and each job of calrt's (default 60, and 0.25 a step)",
    )
    parser.add_argument(
        "--no-isolate", action="store_true", help="calrt in this process, whatever the driver"
    )
    parser.add_argument(
        "--record",
        type=path,
        metavar="FILE",
        help="add what was found to a file of evidence; its folder has to be there",
    )


def _ab(options: argparse.Namespace) -> int:
    from calrt.bench_ab import record, run
    from calrt.progress import silent

    recording = Recording(options.record)

    def begun(report: Report) -> None:
        if options.record:
            recording.check(record(report))

    with ExitStack() as stack:
        terminal = stack.enter_context(few_lines(silent=options.json))
        progress = silent if options.json else stack.enter_context(_Waiting(terminal))
        report = run(
            options.device,
            package=options.package,
            steps=options.steps,
            rounds=options.rounds,
            isolate=False if options.no_isolate else None,
            timeout=options.timeout,
            progress=progress,
            begun=begun,
        )
    document = report.to_json()
    recording.add(lambda: record(report))
    if recording.error is not None:
        document |= error_document(recording.error, EXIT_FAILED)
    emit(options, document, _text(report, options.rounds))
    if recording.error is not None:
        return EXIT_FAILED if options.json else fail(recording.error, EXIT_FAILED, as_json=False)
    return EXIT_FAILED if report.verdict == "refused" else 0


class _Waiting(ConsoleProgress):
    """One phase for all blocks; names the arm that keeps one waiting."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, "blocks")
        self._timer: threading.Timer | None = None

    def __call__(self, what: str, done: int, total: int, /) -> None:
        self._stop()
        if what.startswith("arm "):
            super().__call__("measuring", done, total)
        self._timer = threading.Timer(_WAIT_S, self._say, [f"still waiting for {what} ..."])
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        self._stop()
        super().close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _text(report: Report, rounds: int) -> str:
    from calrt.bench_ab import ARMS, MIN_ROUNDS

    lines = [f"{report.spec}: {report.steps} steps on {report.sequences} sequences, against {report.raw}"]
    if report.verdict == "refused":
        return "\n".join([*lines, f"refused: {report.why}"])
    for arm, blocks in report.ns.items():
        lines.append(f"  {arm}  {min(blocks) / report.steps / 1e3:10.3f} us a step at best  {ARMS[arm]}")
    if report.verdict == "no outputs":
        return "\n".join([*lines, f"no verdict: {report.why}"])
    lines.append("outputs are equal")
    for ratio in report.ratios:
        span = f"{ratio.ratio:.3f} of the time, 95 % {ratio.low:.3f} to {ratio.high:.3f}"
        lines.append(f"  {ratio.arms}  {ratio.verdict:<10}{span}")
    if rounds < MIN_ROUNDS:
        lines.append(f"undecided: --rounds {rounds} are too few, {MIN_ROUNDS} or more tell")
    return "\n".join(lines)
