# SPDX-License-Identifier: Apache-2.0
"""Are output buffers what they are said to be: bound, distinct, and stable until they are let go?"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import calrt
from calrt import _core
from calrt.probes.answer import NO, YES, Answer, Probe, in_short
from calrt.probes.kit import ask_kit, summary
from calrt.probes.subject import Subject, Worker, deltas, driver_counters, told

__all__ = ["PROBE", "measure"]

_PATTERN = 0xA5
_GUARD = 64
_HELD = 3
_STATES = ["JOB-17", "DATA-01", "DATA-02", "DATA-03"]
_REUSED = "reruns"
"""The adapter's counter of outputs that were another run's by the time they were copied."""


def _ask(subject: Subject) -> Answer:
    with subject.loaded() as (device, model):
        before = driver_counters(device)
        try:
            wrong, figures = measure(subject, device, model)
        except calrt.CalrtError as error:
            reused = deltas(before, driver_counters(device)).get(_REUSED, 0)
            if not reused:
                raise
            return Answer(NO, f"an output was reused before it was copied: {told(error)}", {_REUSED: reused})
        figures |= {"counters": deltas(before, driver_counters(device))}
    if reused := figures["counters"].get(_REUSED, 0):
        wrong.append(f"{reused} outputs were another run's before they were copied, and computed once more")
    report = ask_kit(subject, subject.spec, _STATES)
    figures["states"] = summary(report)
    wrong += [f"{check.rule}: {check.why}" for check in report.broken]
    if wrong:
        return Answer(NO, in_short(wrong), figures)
    return Answer(YES, f"{figures['jobs']} outputs were bound, distinct and stable while held", figures)


def measure(subject: Subject, device: calrt.Device, model: calrt.Model) -> tuple[list[str], dict[str, Any]]:
    """What is wrong with the outputs of jobs, and the numbers."""
    worker = Worker(subject, model)
    wrong: list[str] = []
    graph = worker.graph
    nbytes = _bytes(graph)
    rules = device.buffer_rules("host")
    align = max(rules.align, int(graph.outputs["logits"].get("align", 64)))
    kept: list[tuple[int, npt.NDArray[np.uint8], bytes]] = []
    steps = min(subject.steps, worker.cells)
    with graph.context(slots=1, lanes=worker.groups[0]) as context:
        slot = context[0]
        for step in range(steps):
            # Its own buffer for each job, so that what a later one writes elsewhere would show.
            buffer = device.alloc(nbytes + _GUARD, "host", align)
            view = np.frombuffer(memoryview(buffer), np.uint8)
            view[:] = _PATTERN
            slot.bind("logits", buffer)
            slot.inputs["tokens"].numpy()[:] = worker.token(step)
            slot.inputs["positions"].numpy()[:] = step
            slot.submit(deadline=subject.deadline).wait()
            if (view[:nbytes] == _PATTERN).all():
                wrong.append(f"job {step} left its output as it was")
            if not (view[nbytes:] == _PATTERN).all():
                wrong.append(f"job {step} wrote behind its output")
            kept.append((step, view, view.tobytes()))
    worker.reset()
    held = [worker.submit(step).wait() for step in range(min(_HELD, steps))]  # the runtime's own buffers
    raws = [job.outputs["logits"].raw() for job in held]
    copies = [raw.tobytes() for raw in raws]
    addresses = {raw.ctypes.data for raw in raws} | {view.ctypes.data for _, view, _ in kept}
    for step in range(len(held), steps):
        worker.submit(step, seed=1).wait()
    if len(addresses) != len(raws) + len(kept):
        wrong.append(f"{len(raws) + len(kept)} outputs that are held have {len(addresses)} addresses")
    wrong += [
        f"the output of job {step} changed while held" for step, view, was in kept if view.tobytes() != was
    ]
    pairs = zip(raws, copies, strict=True)
    wrong += [
        f"held output {at} changed under later jobs"
        for at, (raw, was) in enumerate(pairs)
        if raw.tobytes() != was
    ]
    figures: dict[str, Any] = {"jobs": 2 * steps, "held": len(kept) + len(raws), "bytes": nbytes}
    worker.close()
    return wrong, figures


def _bytes(graph: _core.Graph) -> int:
    """Of the logits, padding included."""
    with graph.context() as context:
        return int(context[0].outputs["logits"].raw().nbytes)


PROBE = Probe(
    name="outbuf",
    capability="sdk.outputbuf",
    question="Is an output bound to its job alone, and stable until it is let go, or is it reused too early?",
    how="Jobs write into buffers of their own that hold a pattern; all are held, the runtime's own too, "
    "while further jobs run, and compared again. The driver's counter of early reuse is read, and the "
    f"conformance kit asks for the states of buffers and for writes beside and after ({', '.join(_STATES)}).",
    meaning={
        "yes": "every output was written whole, in its place alone, and did not change while it was held",
        "no": "one changed, was not written, or was reused before it was copied: copy at once, in-flight 1",
    },
    ask=_ask,
)
