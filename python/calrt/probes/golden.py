# SPDX-License-Identifier: Apache-2.0
"""Do the same inputs give the same bits: again, on each lane, and after other work?"""

from __future__ import annotations

from calrt.probes.answer import NO, YES, Answer, Probe
from calrt.probes.subject import Subject, Worker

__all__ = ["PROBE"]

_RUNS = 5
_LANES = 4


def _ask(subject: Subject) -> Answer:
    with subject.loaded(**subject.many_lanes(_LANES)) as (_, model):
        worker = Worker(subject, model, _LANES)
        golden = worker.run(subject.steps)
        runs = [("again", 0, worker.run(subject.steps)) for _ in range(_RUNS - 1)]
        for group in range(1, len(worker.groups)):
            runs.append((f"on lane {group}", group, worker.run(subject.steps, group)))
        for group in reversed(range(len(worker.groups))):
            worker.run(subject.steps, group, seed=1)  # other work, on its own lane and on the others
        runs.append(("after other work", 0, worker.run(subject.steps)))
        worker.close()
    figures = {
        "runs": 1 + len(runs),
        "lanes": len(worker.groups),
        "steps": len(golden),
        "sha256": golden[-1],
        "distinct": len(set(golden)),
    }
    for how, _, run in runs:
        if run != golden:
            step = next(at for at, (one, other) in enumerate(zip(golden, run, strict=True)) if one != other)
            why = f"{how}, step {step} gave other bits: {run[step][:12]} for {golden[step][:12]}"
            return Answer(NO, why, figures | {"step": step, "how": how})
    if len(golden) > 1 and len(set(golden)) == 1:
        return Answer(NO, f"all {len(golden)} steps gave the same bits, whatever the token", figures)
    return Answer(YES, f"{1 + len(runs)} runs of {len(golden)} steps gave the same bits", figures)


PROBE = Probe(
    name="golden",
    capability="golden",
    question="Does the device give the same bits for the same inputs?",
    how=f"One sequence is run {_RUNS} times, once on each of up to {_LANES} lanes, and once more after other "
    "sequences have used the same lanes; the SHA-256 of each step's logits is compared.",
    meaning={
        "yes": "every bit agreed: outputs can be held against a golden run",
        "no": "a step differed, which is named: outputs can be compared by tolerance at best",
    },
    ask=_ask,
)
