# SPDX-License-Identifier: Apache-2.0
"""Do two fixed sets of buffers, used in turns, give what a job with fresh ones gives?"""

from __future__ import annotations

import hashlib
from typing import Any

import calrt
from calrt import _core
from calrt.probes.answer import NO, NOT_OFFERED, YES, Answer, Probe, in_short
from calrt.probes.kit import ask_kit, summary
from calrt.probes.subject import Subject, Worker

__all__ = ["PROBE"]

_SETS = 2
_RULES = ["BIND-01", "BIND-02", "BIND-04"]


def _ask(subject: Subject) -> Answer:
    with subject.loaded() as (device, model):
        offered = any(cap.name == "binding_sets" and cap.value for cap in device.caps)
        worker = Worker(subject, model)
        right = worker.run(subject.steps)
        worker.reset()
        with worker.graph.context(slots=_SETS, lanes=worker.groups[0]) as context:
            wrong, distinct = _alternate(subject, worker, context, right)
        worker.close()
    figures: dict[str, Any] = {"steps": len(right), "sets": _SETS, "addresses": distinct, "offered": offered}
    if offered:
        report = ask_kit(subject, subject.spec, _RULES)
        figures["kit"] = summary(report)
        wrong += [f"{check.rule}: {check.why}" for check in report.broken]
    if wrong:
        return Answer(NO, in_short(wrong), figures | {"faults": len(wrong)})
    if not offered:
        why = "the driver knows no binding sets; two sets of the runtime's own alternate right"
        return Answer(NOT_OFFERED, why, figures)
    return Answer(YES, f"{len(right)} jobs over {_SETS} sets gave the bits of unbound ones", figures)


def _alternate(
    subject: Subject, worker: Worker, context: _core.GraphContext, right: list[str]
) -> tuple[list[str], int]:
    wrong: list[str] = []
    addresses = {context[at].outputs["logits"].raw().ctypes.data for at in range(_SETS)}
    if len(addresses) != _SETS:
        wrong.append(f"{_SETS} sets have {len(addresses)} outputs")
    before: bytes | None = None
    for step in range(len(right)):
        slot, other = context[step % _SETS], context[(step + 1) % _SETS]
        slot.inputs["tokens"].numpy()[:] = worker.token(step)
        slot.inputs["positions"].numpy()[:] = step
        try:
            slot.submit(deadline=subject.deadline).wait()
        except calrt.DeviceError:  # no matter of sets
            raise
        except calrt.CalrtError as error:
            wrong.append(f"step {step}: {error}")
            return wrong, len(addresses)
        logits = slot.outputs["logits"]
        if hashlib.sha256(logits.to_f32().tobytes()).hexdigest() != right[step]:
            wrong.append(f"step {step}: set {step % _SETS} holds other bits than an unbound job gives")
        if before is not None and other.outputs["logits"].raw().tobytes() != before:
            wrong.append(f"step {step}: the output of the other set changed")
        before = logits.raw().tobytes()
    return wrong, len(addresses)


PROBE = Probe(
    name="pingpong",
    capability="binding_sets",
    question="Can two fixed sets of buffers alternate, with outputs where they were bound?",
    how="The same sequence is run with fresh buffers and then over two fixed sets in turns; each output is "
    "compared, and that of the other set must stay as it was. The conformance kit compares jobs that name "
    f"their set with jobs that name none ({', '.join(_RULES)}).",
    meaning={
        "yes": "two sets alternate, each output is in its own set and equal",
        "no": "an output differs, lies elsewhere, or overwrites the other set",
        "not offered": "the driver takes no sets; the runtime's, bound anew each time, alternate right",
    },
    ask=_ask,
)
