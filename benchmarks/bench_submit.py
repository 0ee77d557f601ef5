# SPDX-License-Identifier: Apache-2.0
"""What a job costs from Python on a device that does nothing: submit + wait + destroy, minus an empty call.

Nobody touches the outputs. The value is the time above an empty bound call of the same run; its limit is
3 us.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

import calrt

CALLS = 200
LIMIT_S = 3e-6

Ints = npt.NDArray[np.int32]


def empty_calls(model: calrt.Model) -> Callable[[], None]:
    context = model.graphs["decode_b1"].context()
    context.close()
    nothing = context.close

    def run() -> None:
        for _ in range(CALLS):
            nothing()

    return run


def record(perf, name: str, subject: Callable[[], None], model: calrt.Model) -> None:  # type: ignore[no-untyped-def]
    best, empty = perf.best(subject, empty_calls(model), rounds=40)
    perf.record(name, 1e6 * (best - empty) / CALLS, "us", limit=1e6 * LIMIT_S)


@pytest.mark.parametrize("rows", [1, 4])
def test_graph_submit(perf, null_model: calrt.Model, rows: int) -> None:  # type: ignore[no-untyped-def]
    graph = null_model.graphs[f"decode_b{rows}"]
    lanes = [null_model.kv.reserve(CALLS) for _ in range(rows)]
    tokens = np.arange(rows, dtype=np.int32)
    steps: list[Ints] = [np.full(rows, step, np.int32) for step in range(CALLS)]

    def run() -> None:
        for positions in steps:
            graph.submit(tokens=tokens, positions=positions, lanes=lanes).wait()
        for lane in lanes:
            lane.truncate(0)

    record(
        perf,
        f"py submit+wait+destroy: Graph.submit, decode_b{rows}, int32 tokens, positions",
        run,
        null_model,
    )


@pytest.mark.parametrize("rows", [1, 4])
def test_slot_submit(perf, null_model: calrt.Model, rows: int) -> None:  # type: ignore[no-untyped-def]
    lanes = [null_model.kv.reserve(CALLS) for _ in range(rows)]
    context = null_model.graphs[f"decode_b{rows}"].context(lanes=lanes)
    slot = context[0]

    def run() -> None:
        for _ in range(CALLS):
            slot.submit().wait()
        for lane in lanes:
            lane.truncate(0)

    record(perf, f"py submit+wait+destroy: BindingSlot.submit, decode_b{rows}", run, null_model)


def test_prefill_submit(perf, null_model: calrt.Model) -> None:  # type: ignore[no-untyped-def]
    graph = min((g for g in null_model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)
    lane = null_model.kv.reserve(CALLS)
    lanes = [lane]
    tokens, rows = np.arange(1, dtype=np.int32), np.zeros(1, np.int32)
    steps: list[Ints] = [np.full(1, step, np.int32) for step in range(CALLS)]

    def run() -> None:
        for positions in steps:
            graph.submit(tokens=tokens, positions=positions, lanes=lanes, logit_rows=rows).wait()
        lane.truncate(0)

    name = f"py submit+wait+destroy: Graph.submit, {graph.name}, int32 tokens, positions, logit_rows"
    record(perf, name, run, null_model)
