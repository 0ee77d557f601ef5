# SPDX-License-Identifier: Apache-2.0
"""Do the queue's counters count, and how many jobs are taken before one is refused?"""

from __future__ import annotations

from typing import Any

import calrt
from calrt import _core
from calrt.probes.answer import NO, NOT_ASKED, NOT_OFFERED, YES, Answer, Probe, in_short
from calrt.probes.kit import ask_kit, summary
from calrt.probes.subject import Subject, Worker, deltas, driver_counters

__all__ = ["PROBE"]

_STRAY = ("stray_ends", "calrt.stray_completions")
"""Counters of ends that were told of jobs that do not run."""
_TRIES = 20
_RULES = ["JOB-19", "JOB-20"]


def _ask(subject: Subject) -> Answer:
    info, _ = subject.look()
    room = info.depth + info.queue
    with subject.loaded(**subject.many_lanes(room + 1)) as (device, model):
        worker = Worker(subject, model, room + 1)
        before = driver_counters(device)
        jobs = len(worker.run(subject.steps))
        rises = deltas(before, driver_counters(device))
        counting = sorted(name for name, rise in rises.items() if rise == jobs)
        taken, refused = _fill(worker)
        stray = {name: rise for name in _STRAY if (rise := deltas(before, driver_counters(device)).get(name))}
        worker.close()
    figures = {
        "jobs": jobs,
        "counters": rises,
        "counting": counting,
        "stated": room,
        "lanes": len(worker.groups),
        "taken": taken,
        "refused": refused,
    }
    if stray:
        return Answer(NO, f"ends were told of jobs that do not run: {stray}", figures | {"stray": stray})
    if rises and not counting:
        return Answer(NO, f"no counter rose by the {jobs} jobs that ran: {rises}", figures)
    if refused and taken != room:
        return Answer(NO, f"{taken} jobs were taken before one was refused; it says {room}", figures)
    if taken > room:
        return Answer(NO, f"{taken} jobs were taken at once; it says {room}", figures)
    if not counting:
        return Answer(NOT_OFFERED, f"no counter of the driver rose while {jobs} jobs ran", figures)
    if not refused:
        return _by_kit(subject, counting, figures)
    return Answer(YES, f"{', '.join(counting)} count right; {room} jobs taken, the next one refused", figures)


def _by_kit(subject: Subject, counting: list[str], figures: dict[str, Any]) -> Answer:
    """The depth as the bare table has it, where lanes are too few or the device too fast for the runtime."""
    report = ask_kit(subject, subject.spec, _RULES)
    figures["kit"] = summary(report)
    if report.broken:
        return Answer(NO, in_short([f"{check.rule}: {check.why}" for check in report.broken]), figures)
    counters = f"{', '.join(counting)} count right"
    if not any(check.verdict == "pass" and check.rule == _RULES[0] for check in report.checks):
        why = ", ".join(sorted({check.why for check in report.checks if check.verdict == "skip"}))
        return Answer(NOT_ASKED, f"{counters}; the depth is open: {why}", figures)
    return Answer(
        YES, f"{counters}; {figures['stated']} jobs taken by the bare table, then QUEUE_FULL", figures
    )


def _fill(worker: Worker) -> tuple[int, bool]:
    """Submits one job a lane until one is refused: the most that were live then, and whether one was."""
    most = 0
    for _ in range(_TRIES):
        jobs: list[_core.Job] = []
        refused = False
        for group in range(len(worker.groups)):
            worker.reset(group)
            try:
                jobs.append(worker.submit_long(group))
            except calrt.CapacityError as error:
                if error.code != calrt.Status.QUEUE_FULL:
                    raise
                refused = True
                break
        ended = sum(job.done for job in jobs)
        for job in jobs:
            job.wait()
        if refused and not ended:  # nothing left the queue while it was filled
            return len(jobs), True
        most = max(most, len(jobs) - ended)
    return most, False


PROBE = Probe(
    name="queue",
    capability="queue",
    question="Do the queue's counters count what was submitted, and how deep is it before it refuses?",
    how="Counters are read before and after jobs whose number is known. Then one long job a lane is "
    "submitted without waiting, until one is refused while none has ended; that number is held against "
    f"what the device states. Where lanes are too few the conformance kit fills it ({', '.join(_RULES)}).",
    meaning={
        "yes": "a counter rose by exactly the jobs, and as many as stated were taken before QUEUE_FULL",
        "no": "no counter did, another number was taken, or ends were told of jobs that do not run",
        "not offered": "the driver has no counters that rise",
        "not asked": "the counters are right; the depth could not be met: too few lanes, too fast a device",
    },
    ask=_ask,
)
