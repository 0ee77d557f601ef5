# SPDX-License-Identifier: Apache-2.0
"""`calrt bench ab`: the SDK's own loop against calrt with one and with two jobs in flight."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING

import calrt
from calrt.cli.output import (
    EXIT_FAILED,
    Commands,
    emit,
    error_document,
    fail,
    path,
    whole_number,
)
from calrt.cli.output import add_command as new_command

if TYPE_CHECKING:
    from calrt.bench_ab import Report

__all__ = ["add_subject"]

_ABOUT = """

Arm A runs and waits at once without calrt: by the SDK's own infer() and Wait() where the driver brings such a
loop, else by the driver's bare table. Arm B is calrt with one job in flight, arm C with two, of as many
sequences. All run the same steps, in the order A B C C B A. Outputs are compared first: one bit that differs
refuses the figures. Then each ratio of times stands with its 95 % confidence interval (Student's t of paired
log ratios): faster or slower if it lies on one side of 1, else equal. Exit code 1 if refused."""

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
        "--no-isolate", action="store_true", help="calrt in this process, whatever the driver"
    )
    parser.add_argument(
        "--record", type=path, metavar="FILE", help="add what was found to a file of evidence"
    )


def _ab(options: argparse.Namespace) -> int:
    from calrt.bench_ab import record, run
    from calrt.progress import ConsoleProgress, silent

    with nullcontext(silent) if options.json else ConsoleProgress(unit="blocks") as progress:
        report = run(
            options.device,
            package=options.package,
            steps=options.steps,
            rounds=options.rounds,
            isolate=False if options.no_isolate else None,
            progress=progress,
        )
    document = report.to_json()
    unwritten: Exception | None = None
    if options.record:
        try:
            record(report).merged_into(options.record).write(options.record)
        except (calrt.CalrtError, OSError, ValueError) as error:  # the figures are not lost with their record
            unwritten = error
            document |= error_document(error, EXIT_FAILED)
    emit(options, document, _text(report))
    if unwritten is not None:
        return EXIT_FAILED if options.json else fail(unwritten, EXIT_FAILED, as_json=False)
    return EXIT_FAILED if report.verdict == "refused" else 0


def _text(report: Report) -> str:
    from calrt.bench_ab import ARMS

    lines = [f"{report.spec}: {report.steps} steps on {report.sequences} sequences, against {report.raw}"]
    if report.verdict == "refused":
        return "\n".join([*lines, f"refused: {report.why}"])
    for arm, blocks in report.ns.items():
        lines.append(f"  {arm}  {min(blocks) / report.steps / 1e3:10.3f} us a step at best  {ARMS[arm]}")
    lines.append("outputs are equal")
    for ratio in report.ratios:
        span = f"{ratio.ratio:.3f} of the time, 95 % {ratio.low:.3f} to {ratio.high:.3f}"
        lines.append(f"  {ratio.arms}  {ratio.verdict:<7}{span}")
    return "\n".join(lines)
