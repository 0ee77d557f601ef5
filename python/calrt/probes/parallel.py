# SPDX-License-Identifier: Apache-2.0
"""Is parallel mode an option of a load that is heeded, or refused?"""

from __future__ import annotations

import statistics
import time
from typing import Any

import calrt
from calrt.probes.answer import NO, NOT_OFFERED, YES, Answer, Probe, in_short
from calrt.probes.kit import ask_kit, summary
from calrt.probes.subject import Subject, Worker, told

__all__ = ["PROBE"]

_RULES = ["LOAD-04"]


def _ask(subject: Subject) -> Answer:
    try:
        modes = _modes(subject)
    except calrt.UnsupportedError as error:
        return Answer(NOT_OFFERED, told(error))
    figures: dict[str, Any] = {"modes": modes}
    refused: dict[str, str] = {}
    outputs: dict[str, list[str]] = {}
    us: dict[str, float] = {}
    for mode in modes:
        try:
            outputs[mode], us[mode] = _run(subject, mode)
        except (calrt.UnsupportedError, calrt.InvalidArgumentError, calrt.PackageError) as error:
            refused[mode] = told(error)
    figures |= {"refused": refused, "us_per_job": {mode: round(value, 3) for mode, value in us.items()}}
    report = ask_kit(subject, subject.spec, _RULES)
    figures["refusals"] = summary(report)
    if report.broken:
        return Answer(NO, in_short([check.why for check in report.broken]), figures)
    if len(outputs) < 2:
        ran = list(outputs)
        return Answer(
            NOT_OFFERED, f"of its modes {modes} it loads {ran}" + (f": {refused}" if refused else ""), figures
        )
    first, *others = outputs
    for mode in others:
        if outputs[mode] != outputs[first]:
            return Answer(NO, f"parallel={mode} gives other bits than {first}", figures)
    figures["ratio"] = {mode: round(us[mode] / us[first], 4) for mode in others}
    return Answer(YES, f"{', '.join(outputs)} load and give the same bits; times in figures", figures)


def _modes(subject: Subject) -> list[str]:
    with subject.open() as device:
        return list(device.topology.modes)


def _run(subject: Subject, mode: str) -> tuple[list[str], float]:
    """The digests of the steps in a mode, and the median us of a job."""
    with subject.loaded(parallel=mode) as (_, model):
        worker = Worker(subject, model)
        digests = worker.run(subject.steps)
        worker.reset()
        taken = []
        for step in range(len(digests)):
            begin = time.perf_counter_ns()
            worker.submit(step).wait()
            taken.append((time.perf_counter_ns() - begin) / 1e3)
        worker.close()
    return digests, statistics.median(taken)


PROBE = Probe(
    name="parallel",
    capability="parallel_tensor",
    question="Is parallel mode real: do several modes load, agree in their outputs, and differ in time?",
    how="The model is loaded in each mode that the device names; the same steps are run and timed. The "
    f"conformance kit asks for modes and placements that there are not ({', '.join(_RULES)}).",
    meaning={
        "yes": "two modes or more load and give the same bits; `ratio` has what they do to the time",
        "no": "the bits differ, or what does not exist is taken",
        "not offered": "one mode at most loads, with this package; the others are refused",
    },
    ask=_ask,
)
