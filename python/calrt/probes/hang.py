# SPDX-License-Identifier: Apache-2.0
"""Does every wait end by its deadline, and is the device usable after one that did not?"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import calrt
from calrt.probes.answer import BROKEN, NO, YES, Answer, Probe
from calrt.probes.subject import Subject, Worker, digest, told

__all__ = ["PROBE"]

_SHORT_S = 0.001
_LATE_S = 2.0
"""How much later than at its limit a wait may come back: the machine may be busy, a hang has no end."""
_RELOADS = 2


def _ask(subject: Subject) -> Answer:
    figures: dict[str, Any] = {}
    first, why = _round(subject, figures)
    if why is None:
        return Answer(YES, f"{len(first)} jobs ended, and every wait by its deadline", figures)
    still: str | None = None
    for attempt in range(1, _RELOADS + 1):
        again, still = _round(subject, {})
        figures["reopened"] = attempt
        if still is None and again[: len(first)] != first:
            still = "the jobs gave other bits"
        if still is None:
            return Answer(NO, f"{why}; opened again, {len(again)} jobs gave the right bits", figures)
    return Answer(BROKEN, f"{why}; opened again {_RELOADS} times, to no avail: {still}", figures)


def _round(subject: Subject, figures: dict[str, Any]) -> tuple[list[str], str | None]:
    """Jobs one by one from a fresh open: the digests of those that ended, and what hung, None = nothing."""
    done: list[str] = []
    short = longest = 0.0
    began = time.monotonic()
    device = model = None
    try:
        device = subject.open()
        subject.stage("load")
        model = device.load(subject.package)
        worker = Worker(subject, model)
        for step in range(min(subject.steps, worker.cells)):
            subject.stage(f"job {step}")
            began = time.monotonic()
            job = worker.submit(step)
            asked = time.monotonic()
            with suppress(calrt.WaitTimeoutError):
                job.wait(timeout=_SHORT_S)
            short = max(short, time.monotonic() - asked)
            done.append(digest(job))
            longest = max(longest, time.monotonic() - began)
        worker.close()
    except (calrt.DeviceError, calrt.ExecutionError, calrt.WaitTimeoutError) as error:
        hung = time.monotonic() - began
        figures |= {"jobs": len(done), "hung_s": round(hung, 3)}
        late = "" if hung < subject.deadline + _LATE_S else f", told {hung:.1f} s after submit"
        return done, f"job {len(done)} did not end{late}: {told(error)}"
    finally:
        subject.stage("close")
        for each in (model, device):
            if each is not None:
                with suppress(calrt.CalrtError):  # of what is lost
                    each.close(force=True)
    figures |= {
        "jobs": len(done),
        "longest_s": round(longest, 6),
        "short_wait_s": round(short, 6),
        "deadline_s": subject.deadline,
    }
    if short > _SHORT_S + _LATE_S:
        return done, f"a wait of {_SHORT_S} s came back after {short:.3f} s"
    return done, None


PROBE = Probe(
    name="hang",
    capability="job_deadline",
    question="Does each call answer by its deadline, and what is left of a device that does not?",
    how="Jobs with a deadline are submitted and waited for, first for a millisecond; where one does not end, "
    "or the device is lost, everything is closed and opened again, and the same jobs are run once more.",
    meaning={
        "yes": "every job ended, and every wait kept its limit",
        "no": "a job or a call did not end, and the caller was told in time; opened again, it is right",
        "broken": "the caller was not answered at all, the driver died, or opening again does not help",
    },
    ask=_ask,
    of_hangs=True,
)
