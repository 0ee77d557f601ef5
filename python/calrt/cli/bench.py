# SPDX-License-Identifier: Apache-2.0
"""`calrt bench`: short measurements, each beside its limit or peer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import calrt
from calrt.cli import bench_ab
from calrt.cli.output import (
    Commands,
    Parser,
    add_device_flags,
    emit,
    open_device,
    path,
    whole_number,
)
from calrt.cli.output import add_command as new_command

if TYPE_CHECKING:
    from calrt.perf_rows import Bench
    from calrt.progress import Progress

__all__ = ["add_command"]

_READING = """

value stands beside a limit or a peer that was measured in turns with it; ratio is value / limit; load is the
machine's load average of one minute. The best of several short rounds counts. --json gives rows of kind
"bench" of schema calrt.perf/1."""


def add_command(commands: Commands) -> None:
    """Adds `calrt bench`."""
    bench = commands.add_parser("bench", help="measure: copy, bf16, submit, ab")
    subjects = bench.add_subparsers(title="what", metavar="WHAT", required=True, dest="what")
    copy = _subject(
        subjects,
        "copy",
        _copy,
        "measure transfers to the device and back, beside a plain copy",
        "  calrt bench copy\n  calrt bench copy -dev null --sizes 4096,1048576 --rounds 3 --json\n",
    )
    _sizes(copy, "bytes")
    add_device_flags(copy)
    bf16 = _subject(
        subjects,
        "bf16",
        _bf16,
        "measure BF16 conversion, beside ml_dtypes",
        "  calrt bench bf16\n  calrt bench bf16 --sizes 1000 --rounds 3 --json\n",
    )
    _sizes(bf16, "elements")
    submit = _subject(
        subjects,
        "submit",
        _submit,
        "measure what submitting a job and waiting for it costs",
        "  calrt bench submit                the null device takes no time: what remains is calrt's\n"
        "  calrt bench submit -dev cpu       with the device's own work in it, so without a limit\n",
    )
    add_device_flags(submit, default="null")
    submit.add_argument("-m", "--model", default="preset:tiny", help="what to load (default preset:tiny)")
    bench_ab.add_subject(subjects)


def _subject(
    subjects: Commands, name: str, command: Callable[[argparse.Namespace], int], summary: str, examples: str
) -> Parser:
    parser = new_command(subjects, name, command, summary=summary, about=_READING, examples=examples)
    parser.add_argument(
        "--rounds", type=whole_number(1, 1000), default=25, help="rounds, the best one counts (default 25)"
    )
    parser.add_argument("--out", type=path, metavar="FILE", help="write a file of schema calrt.perf/1 too")
    return parser


def _sizes(parser: Parser, what: str) -> None:
    parser.add_argument("--sizes", type=_listed, metavar="N,N", help=f"{what} of each measurement")


def _listed(text: str) -> list[int]:
    return [whole_number(1, 1 << 30)(part) for part in text.split(",")]


def _copy(options: argparse.Namespace) -> int:
    from calrt.bench import COPY_SIZES, copy_rows

    with open_device(options) as device:
        return _measure(
            options,
            lambda progress: copy_rows(
                device, options.sizes or COPY_SIZES, rounds=options.rounds, progress=progress
            ),
        )


def _bf16(options: argparse.Namespace) -> int:
    from calrt.bench import BF16_SIZES, bf16_rows

    return _measure(
        options,
        lambda progress: bf16_rows(options.sizes or BF16_SIZES, rounds=options.rounds, progress=progress),
    )


def _submit(options: argparse.Namespace) -> int:
    from calrt.bench import submit_rows

    with open_device(options) as device, device.load(options.model) as model:
        at_once = device.info.driver == "null"
        return _measure(
            options,
            lambda progress: submit_rows(model, rounds=options.rounds, at_once=at_once, progress=progress),
        )


def _measure(options: argparse.Namespace, measure: Callable[[Progress], Iterable[Bench]]) -> int:
    from calrt.perf import PerfWriter, new_run, plain
    from calrt.perf_rows import SCHEMA, Driver
    from calrt.progress import ConsoleProgress, silent

    rows: list[Bench] = []
    with ExitStack() as stack:
        writer: PerfWriter | None = None
        if options.out:  # first: a file that cannot be written is not to be found out after measuring
            run = new_run(driver=Driver(ver=calrt.__version__))
            writer = stack.enter_context(PerfWriter(options.out, run))
        progress = silent if options.json else stack.enter_context(ConsoleProgress(unit="figures"))
        for row in measure(progress):
            rows.append(row)
            if writer is not None:
                writer.write(row)
    document: dict[str, Any] = {"schema": SCHEMA, "rows": [plain(row) for row in rows]}
    emit(options, document, _table(rows))
    return 0


def _table(rows: Sequence[Bench]) -> str:
    from calrt.cli.caps import table

    def shown(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else format(value, form)

    head = ("what", "n", "value", "limit or peer", "unit", "ratio", "load")
    body = [
        (
            row.name,
            str(row.n or "-"),
            shown(row.value),
            shown(row.limit),
            row.unit,
            shown(row.ratio, ".3f"),
            shown(row.load, ".2f"),
        )
        for row in rows
    ]
    return table([head, *body])
