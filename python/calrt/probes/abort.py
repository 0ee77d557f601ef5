# SPDX-License-Identifier: Apache-2.0
"""Does misuse give an error, or does it end the process?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calrt
from calrt.probes.answer import BROKEN, ENDED, NO, YES, Answer, Probe, in_short
from calrt.probes.kit import ask_kit, summary
from calrt.probes.subject import Subject, Worker, told

__all__ = ["PROBE"]

_RULES = [
    *("INFO-04", "INFO-11", "INFO-13", "BUF-05", "BUF-10", "LOAD-04"),
    *("JOB-02", "JOB-03", "JOB-04", "JOB-05", "JOB-06", "JOB-08", "JOB-21", "KV-02", "KV-03", "CANCEL-01"),
]


def _ask(subject: Subject) -> Answer:
    bare = subject.spec.removeprefix("isolate:")
    specs = [bare] if subject.isolate is False else [f"isolate:{bare}", bare]
    figures: dict[str, Any] = {}
    died: list[str] = []
    accepted: list[str] = []
    for spec in specs:
        where = "isolated" if spec.startswith("isolate:") else "in process"
        report = ask_kit(subject, spec, _RULES)
        figures[where] = summary(report)
        for check in report.broken:
            ended = any(words in check.why for words in ENDED)
            (died if ended else accepted).append(f"{where}, {check.rule}: {check.why}")
    subject.stage("lifetimes")
    taken: dict[str, str] = {}
    try:
        _lifetimes(subject, taken)
    except (calrt.CalrtError, OSError) as error:  # what the kit found is not lost with it
        died.append(f"in the order of calls: {told(error)}")
    figures["lifetimes"] = taken
    accepted += [f"{what} was taken" for what, error in taken.items() if not error]
    if died:
        return Answer(BROKEN, in_short(died), figures | {"died": len(died)})
    if accepted:
        return Answer(NO, in_short(accepted), figures)
    asked = sum(figures[where]["checks"].get("pass", 0) for where in figures if where != "lifetimes")
    return Answer(YES, f"{asked + len(taken)} kinds of misuse each gave an error", figures)


def _lifetimes(subject: Subject, found: dict[str, str]) -> None:
    """Misuse in the order of calls: by kind, the error that it gave; "" = it was taken."""

    def refuse(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (calrt.CalrtError, ValueError) as error:
            found[what] = told(error)
        else:
            found[what] = ""

    device = subject.open()
    model = device.load(subject.package)
    worker = Worker(subject, model)
    refuse("a token outside of the vocabulary", lambda: _with(worker, token=model.vocab))
    refuse("a position outside of the lane", lambda: _with(worker, position=model.cells))
    job = worker.submit(0)
    model.close(force=True)  # with a job in flight
    refuse("a job of a closed model", lambda: worker.submit(1))
    device.close(force=True)
    refuse("a load on a closed device", lambda: device.load(subject.package))
    del job


def _with(worker: Worker, token: int = 0, position: int = 0) -> object:
    n = worker.graph.batch
    return worker.graph.submit(tokens=[token] * n, positions=[position] * n, lanes=worker.groups[0]).wait()


PROBE = Probe(
    name="abort",
    capability="misuse",
    question="Is misuse of each kind an error, or does it end the process?",
    how="The conformance kit's rules of misuse, on the driver's bare table, behind isolation and in a "
    "process without it; then misuse in the order of calls by the runtime.",
    meaning={
        "yes": "each kind was answered by an error",
        "no": "a kind of misuse was taken without an error",
        "broken": "one ended or hung its process, which is named: the driver belongs behind `isolate:`",
    },
    ask=_ask,
)
