# SPDX-License-Identifier: Apache-2.0
"""`calrt probe`: asks a device what is open about it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import calrt
from calrt.cli.output import (
    EXIT_FAILED,
    Commands,
    UsageError,
    emit,
    error_document,
    fail,
    number,
    path,
    whole_number,
)
from calrt.cli.output import add_command as new_command
from calrt.cli.recording import Recording
from calrt.probes.run import DEADLINE_S, STEPS, TIMEOUT_S, Findings, record, run

__all__ = ["add_command"]

_NAMES = ("outbuf", "queue", "golden", "trace", "parallel", "pingpong", "abort", "hang")

_NOT_OPTIONS = ("spec", "isolate", "allow_unverified")
"""What a probe says to `calrt.open` itself."""

_ABOUT = """

Each probe asks one question in a process of its own, which may hang or die (docs/probes.md). It answers yes,
no, not offered, not asked or broken, with the numbers. What is not proven yet is used: to find out is what a
probe is for."""

_EXAMPLES = """  calrt probe all -dev mock
  calrt probe golden queue -dev calrt076 --package DIR --record evidence.json
  calrt probe hang -dev /path/libcald_yours.so --deadline 2 --json
  calrt probe --list
"""


def add_command(commands: Commands) -> None:
    """Adds `calrt probe`."""
    parser = new_command(
        commands,
        "probe",
        _probe,
        summary="ask a device what is open about it: outputs, queue, bits, trace, modes, misuse, hangs",
        about=_ABOUT,
        examples=_EXAMPLES,
    )
    parser.add_argument("probes", nargs="*", metavar="PROBE", help=f"{', '.join(_NAMES)}, or all")
    parser.add_argument(
        "-dev", "--device", default="mock", metavar="SPEC", help="what calrt.open() takes (default mock)"
    )
    parser.add_argument(
        "--package", default="preset:tiny", type=path, help="what to load (default preset:tiny)"
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the device")
    parser.add_argument(
        "--steps", type=whole_number(2, 4096), default=STEPS, help=f"jobs of a measurement (default {STEPS})"
    )
    parser.add_argument(
        "--deadline",
        type=number(0.05, 3600),
        default=DEADLINE_S,
        metavar="S",
        help=f"for each job, and each call behind isolate: (default {DEADLINE_S:g})",
    )
    parser.add_argument(
        "--timeout",
        type=number(1, 1e6),
        default=TIMEOUT_S,
        metavar="S",
        help=f"for each probe, loads included (default {TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--record",
        type=path,
        metavar="FILE",
        help="add each answer to a file of evidence as it comes; its folder has to be there",
    )
    parser.add_argument("--list", action="store_true", help="list the probes, and run none")


def _probe(options: argparse.Namespace) -> int:
    from calrt.probes.registry import PROBES

    if options.list:
        emit(
            options,
            {
                "probes": [
                    {
                        "name": probe.name,
                        "capability": probe.capability,
                        "question": probe.question,
                        "how": probe.how,
                        "meaning": probe.meaning,
                    }
                    for probe in PROBES.values()
                ]
            },
            "\n".join(f"{probe.name:<9} {probe.question}" for probe in PROBES.values()),
        )
        return 0
    names = _chosen(options.probes)
    recording = Recording(options.record)
    width = max(map(len, names))

    def begun(findings: Findings) -> None:
        if options.record:
            try:
                recording.check(record(findings))
            except (calrt.CalrtError, ValueError) as error:
                raise UsageError(f"--record: {error}") from None
        elif "why" in findings.subject and not options.json:
            print(f"{findings.spec} does not open: {findings.subject['why']}", flush=True)

    def answered(findings: Findings, name: str) -> None:
        answer = findings.answers[name]
        if not options.json:
            print(f"{name:<{width}}  {answer.word:<11}  {answer.why}", flush=True)
        # Each at once: what interrupts the next ones takes none of it.
        recording.add(lambda: record(replace(findings, answers={name: answer})))

    findings = run(
        options.device,
        names,
        package=options.package,
        options=_options(options.option),
        steps=options.steps,
        deadline=options.deadline,
        timeout=options.timeout,
        progress=_say if sys.stderr.isatty() and not options.json else lambda name: None,
        begun=begun,
        answered=answered,
    )
    document = findings.to_json()
    if recording.error is not None:
        document |= error_document(recording.error, EXIT_FAILED)
    if options.json:
        emit(options, document, "")
    elif recording.error is not None:
        fail(recording.error, EXIT_FAILED, as_json=False)
    return 0 if findings.sound and recording.error is None else EXIT_FAILED


def _say(name: str) -> None:
    print(f"asking {name} ...", file=sys.stderr, flush=True)


def _chosen(words: Sequence[str]) -> list[str]:
    if not words:
        raise UsageError("probe: which PROBE? calrt probe --list tells what each asks; `all` takes all")
    for word in words:
        if word != "all" and word not in _NAMES:
            raise UsageError(f"probe {word}: {', '.join(_NAMES)} or all is due")
    return list(_NAMES) if "all" in words else list(dict.fromkeys(words))


def _options(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--option {word}: KEY=VALUE is due")
        if key in _NOT_OPTIONS:
            raise UsageError(f"--option {word}: {key} is how the device is opened, and no option of it")
        pairs[key] = value
    return pairs
