# SPDX-License-Identifier: Apache-2.0
"""Does the device's own trace hold the jobs that ran, at the times when they ran?"""

from __future__ import annotations

import time
from collections.abc import Sequence

import calrt
from calrt.device_facts import TraceEvent
from calrt.probes.answer import NO, NOT_OFFERED, YES, Answer, Probe, in_short
from calrt.probes.subject import Subject, Worker, told

__all__ = ["PROBE", "faults"]

_RESIDUAL_NS = 1_000_000
"""Clocks that are known no better than this align nothing: a job may be shorter."""


def _ask(subject: Subject) -> Answer:
    with subject.loaded() as (device, model):
        worker = Worker(subject, model)
        spans: dict[int, tuple[int, int]] = {}
        try:
            with device.trace() as trace:
                for step in range(min(subject.steps, worker.cells)):
                    begin = time.monotonic_ns()
                    job = worker.submit(step)
                    job.wait()
                    spans[job.job_seq] = begin, time.monotonic_ns()
        except calrt.UnsupportedError as error:
            return Answer(NOT_OFFERED, told(error))
        finally:
            worker.close()
    wrong = faults(trace.events, spans, trace.residual_ns)
    figures = {
        "jobs": len(spans),
        "events": len(trace.events),
        "dropped": trace.dropped,
        "residual_ns": trace.residual_ns,
    }
    if wrong:
        return Answer(NO, in_short(wrong), figures | {"faults": len(wrong)})
    return Answer(YES, f"{len(spans)} jobs begin and end in it, to {trace.residual_ns} ns", figures)


def faults(events: Sequence[TraceEvent], spans: dict[int, tuple[int, int]], residual_ns: int) -> list[str]:
    """What is wrong with a trace. `spans`: by job, the host's ns before its submit and after its end."""
    wrong: list[str] = []
    if residual_ns > _RESIDUAL_NS:
        wrong.append(f"the clocks agree to {residual_ns} ns alone: {_RESIDUAL_NS} would do")
    for job, (begin, end) in spans.items():
        own = [event for event in events if event.job_id == job and event.phase in ("begin", "end")]
        begins, ends = (sum(event.phase == phase for event in own) for phase in ("begin", "end"))
        if not own or begins != ends:
            wrong.append(f"job {job}: {begins} begins and {ends} ends")
        for event in own:
            if not begin - residual_ns <= event.t_ns <= end + residual_ns:
                off = min(abs(event.t_ns - begin), abs(event.t_ns - end))
                wrong.append(f"job {job}: its {event.phase} lies {off} ns outside, residual {residual_ns} ns")
    return wrong


PROBE = Probe(
    name="trace",
    capability="trace",
    question="Does the device's trace hold each job, and is its clock aligned with the host's?",
    how="Jobs are run one by one under the device's trace, each between two readings of the host's clock; "
    "begin and end of each must be there and lie between them, give or take the residual.",
    meaning={
        "yes": "every job has its begins and ends, at times that can be",
        "no": "events are missing or lie outside of their job, or the residual tells nothing",
        "not offered": "the driver records no trace",
    },
    ask=_ask,
)
