# SPDX-License-Identifier: Apache-2.0
"""Graph.submit, Job, Tensor, contexts and lanes on a tiny model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt.presets import build_preset

PROMPT = [1, 17, 200, 33, 8]


def prefill_name(model: calrt.Model) -> str:
    return min((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk).name


def reference(model: calrt.Model, tokens: list[int]) -> np.ndarray:
    """Logits after `tokens`, one decode at a time on a lane of its own."""
    with model.sequence(len(tokens)) as sequence:
        for token in tokens:
            logits = sequence.decode(token)
        return logits.to_f32()


def test_graphs_describe_themselves(model: calrt.Model) -> None:
    graph = model.graphs["decode_b4"]
    assert (graph.kind, graph.batch, graph.chunk, graph.lane_map) == ("decode", 4, 0, "any")
    assert graph.inputs["tokens"]["dtype"] == "i32"
    assert graph.inputs["tokens"]["shape"] == (4,)
    assert graph.outputs["logits"]["shape"] == (4, model.vocab)
    assert model.graphs[prefill_name(model)].kind == "prefill"
    assert (model.lanes, model.cells, model.vocab) == (4, 128, 384)


def test_submit_wait_and_outputs(model: calrt.Model) -> None:
    with model.kv.reserve(tokens=16, timeout=0.5) as lane:
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane], deadline=5.0)
        assert job.wait(timeout=5.0) is job
        assert (job.state, job.done) == ("done", True)
        assert lane.length == 1
        logits = job.outputs["logits"]
        assert logits.shape == (1, model.vocab)
        assert logits.dtype == "f32"
        view = logits.numpy()
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.setflags(write=True)
        assert np.isfinite(view).all()
        assert (logits.to_f32() == view).all()
        assert logits.row(-1).shape == (model.vocab,)
        assert logits.layout[-1]["stride"] == 4
        assert job.timing["infer_ns"] > 0
        assert job.wait(timeout=0) is job


def test_rows_without_a_lane_are_padding(model: calrt.Model) -> None:
    with model.kv.reserve(4) as a, model.kv.reserve(4) as b:
        job = model.graphs["decode_b4"].submit(tokens=[5, 9], positions=[0, 0], lanes=[a, b]).wait()
        assert job.outputs["logits"].shape == (2, model.vocab)
        rows = job.outputs["logits"].to_f32()
        assert model.kv.free_lanes() == 2
    assert (rows[0] == reference(model, [5])).all()
    assert (rows[1] == reference(model, [9])).all()


def test_prefill_infers_n_valid_and_returns_the_rows_asked_for(model: calrt.Model) -> None:
    graph = model.graphs[prefill_name(model)]
    with model.kv.reserve(len(PROMPT)) as lane:
        job = graph.submit(
            tokens=PROMPT, positions=np.arange(len(PROMPT)), lanes=[lane], logit_rows=[1, 4]
        ).wait()
        rows = job.outputs["logits"].to_f32()
        assert rows.shape == (2, model.vocab)
        assert lane.length == len(PROMPT)
    assert (rows[0] == reference(model, PROMPT[:2])).all()
    assert (rows[1] == reference(model, PROMPT)).all()


def test_n_valid_counts_only_the_first_tokens(model: calrt.Model) -> None:
    graph = model.graphs[prefill_name(model)]
    with model.kv.reserve(8) as lane:
        job = graph.submit(tokens=PROMPT, positions=range(5), lanes=[lane], n_valid=3).wait()
        assert lane.length == 3
        assert (job.outputs["logits"].row(0).to_f32() == reference(model, PROMPT[:3])).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": []}, "tokens: empty"),
        ({"tokens": [1, 2]}, "tokens: 2 given"),
        ({"tokens": [384]}, r"tokens\[0\]=384 is outside 0..383"),
        ({"tokens": [-1]}, r"tokens\[0\]=-1"),
        ({"tokens": [1 << 40]}, r"tokens\[0\]=1099511627776"),
        ({"tokens": [1.5]}, r"tokens\[0\] is a float"),
        ({"tokens": [True]}, r"tokens\[0\] is a bool"),
        ({"tokens": "1"}, "tokens is a str"),
        ({"tokens": np.ones(1)}, "tokens has dtype float64"),
        ({"tokens": np.ones((1, 1), np.int32)}, "tokens has 2 dimensions"),
        ({"positions": []}, "positions: 0 given"),
        ({"positions": [3]}, "positions: lane . holds 0 cells"),
        ({"positions": [128]}, r"positions\[0\]=128 is outside 0..127"),
        ({"lanes": []}, "lanes: 0 given"),
        ({"lanes": [0]}, r"lanes\[0\] is a int"),
        ({"n_valid": 1}, "n_valid belongs to prefill"),
        ({"logit_rows": [0]}, "logit_rows belongs to prefill"),
        ({"deadline": -1.0}, "deadline=-1"),
        ({"deadline": float("nan")}, "deadline=nan"),
    ],
)
def test_bad_input_names_the_field_and_changes_nothing(
    model: calrt.Model, change: dict[str, object], text: str
) -> None:
    with model.kv.reserve(4) as lane:
        call = {"tokens": [1], "positions": [0], "lanes": [lane], **change}
        with pytest.raises(calrt.InvalidArgumentError, match=text):
            model.graphs["decode_b1"].submit(**call)  # type: ignore[arg-type]
        assert lane.length == 0
        model.kv.check_integrity()
        model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane]).wait()


def test_a_chunk_must_fill_neighbouring_cells(model: calrt.Model) -> None:
    graph = model.graphs[prefill_name(model)]
    with model.kv.reserve(8) as lane:
        with pytest.raises(calrt.InvalidArgumentError, match=r"positions\[1\]=2"):
            graph.submit(tokens=[1, 2], positions=[0, 2], lanes=[lane])
        with pytest.raises(calrt.InvalidArgumentError, match=r"n_valid=3 is outside 1\.\.2"):
            graph.submit(tokens=[1, 2], positions=[0, 1], lanes=[lane], n_valid=3)
        with pytest.raises(calrt.InvalidArgumentError, match=r"logit_rows\[0\]=2 is outside 0..1"):
            graph.submit(tokens=[1, 2], positions=[0, 1], lanes=[lane], logit_rows=[2])


def test_one_lane_takes_one_job_and_one_row(model: calrt.Model) -> None:
    with model.kv.reserve(4) as lane:
        with pytest.raises(calrt.InvalidArgumentError, match="are both lane"):
            model.graphs["decode_b4"].submit(tokens=[1, 1], positions=[0, 0], lanes=[lane, lane])
        assert model.kv.snapshot(lane.index)["job_seq"] == 0


def test_lanes_of_another_model_and_released_lanes_are_refused(
    model: calrt.Model, device, tiny_package
) -> None:  # type: ignore[no-untyped-def]
    graph = model.graphs["decode_b1"]
    with (
        device.load(tiny_package, lanes=1, cells=64) as other,
        other.kv.reserve(4) as foreign,
        pytest.raises(calrt.InvalidArgumentError, match="another model"),
    ):
        graph.submit(tokens=[1], positions=[0], lanes=[foreign])
    lane = model.kv.reserve(4)
    lane.release()
    lane.release()
    with pytest.raises(calrt.InvalidArgumentError, match="released"):
        graph.submit(tokens=[1], positions=[0], lanes=[lane])


def test_lanes_are_reserved_waited_for_and_given_back(model: calrt.Model) -> None:
    held = [model.kv.try_reserve(8) for _ in range(4)]
    with pytest.raises(calrt.KvCapacityError):
        model.kv.try_reserve(8)
    start = time.monotonic()
    with pytest.raises(calrt.KvTimeoutError):
        model.kv.reserve(8, timeout=0.05)
    assert time.monotonic() - start >= 0.05
    threading.Timer(0.05, held[2].release).start()
    with model.kv.reserve(8, timeout=30) as lane:
        assert lane.index == held[2].index
    with pytest.raises(calrt.InvalidArgumentError):
        model.kv.reserve(129)
    with pytest.raises(calrt.KvCapacityError):
        model.kv.try_reserve(8, prefer=held[0].index, only=True)
    assert model.kv.can_allocate(8)["free"] == 1
    held[0].release()
    assert model.kv.try_reserve(8, prefer=held[0].index, only=True).index == held[0].index


def test_garbage_collection_gives_a_lane_back(model: calrt.Model) -> None:
    lane = model.kv.reserve(8)
    assert model.kv.free_lanes() == 3
    del lane
    assert model.kv.free_lanes() == 4


def test_truncate_goes_back_and_decode_repeats(model: calrt.Model) -> None:
    with model.sequence(16) as sequence:
        first = sequence.prefill(PROMPT).to_f32()
        sequence.decode(7)
        sequence.truncate(4)
        assert sequence.length == 4
        assert (sequence.decode(PROMPT[4]).to_f32() == first).all()


def test_a_context_reuses_its_slots(model: calrt.Model) -> None:
    with model.kv.reserve(8) as lane, model.graphs["decode_b1"].context(slots=2, lanes=[lane]) as context:
        assert len(context) == 2
        rows = []
        for step, token in enumerate([3, 4, 5]):
            slot = context[step % 2]
            slot.inputs["tokens"].numpy()[:] = token
            rows.append(slot.submit().wait().outputs["logits"].to_f32()[0])
            assert slot.inputs["positions"].numpy()[0] == step
        with pytest.raises(IndexError):
            context[2]
    assert (rows[2] == reference(model, [3, 4, 5])).all()
    with pytest.raises(IndexError):
        context[0]


def test_a_slot_checks_what_was_filled_in(model: calrt.Model) -> None:
    with model.kv.reserve(8) as lane, model.graphs["decode_b1"].context() as context:
        slot = context[0]
        slot.inputs["tokens"].numpy()[:] = 9999
        with pytest.raises(calrt.InvalidArgumentError, match="9999"):
            slot.submit(lanes=[lane])
        with pytest.raises(calrt.InvalidArgumentError, match="tokens: empty"):
            slot.submit(lanes=[])
    with pytest.raises(calrt.StateError, match="closed"):
        _ = slot.inputs


def test_await_gives_the_job_back(model: calrt.Model) -> None:
    async def run() -> list[str]:
        lanes = [model.kv.reserve(4) for _ in range(3)]
        graph = model.graphs["decode_b1"]
        jobs = [graph.submit(tokens=[1], positions=[0], lanes=[lane]) for lane in lanes]
        done = await asyncio.gather(*jobs)
        again = await jobs[0]
        assert again is jobs[0]
        return [job.state for job in done]

    for _ in range(3):  # each run has a loop of its own
        assert asyncio.run(run()) == ["done"] * 3


def test_event_loops_leave_no_descriptor_behind(model: calrt.Model) -> None:
    async def once() -> None:
        with model.kv.reserve(tokens=2) as lane:
            await model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])

    asyncio.run(once())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        asyncio.run(once())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_cancelling_an_await_requests_cancel_and_frees_the_lane(model: calrt.Model) -> None:
    graph = max((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)

    async def cancel_one() -> bool:
        """True if the last of four jobs was still queued, so that the cancel dropped it."""
        lanes = [model.kv.reserve(64) for _ in range(4)]
        jobs = [graph.submit(tokens=[1] * 64, positions=range(64), lanes=[lane]) for lane in lanes]
        task = asyncio.ensure_future(jobs[-1])
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.gather(*jobs, return_exceptions=True)
        assert [job.state for job in jobs[:-1]] == ["done"] * 3
        assert jobs[-1].state in ("done", "cancelled")
        return jobs[-1].state == "cancelled"

    assert any(asyncio.run(cancel_one()) for _ in range(50))
    assert model.kv.free_lanes() == 4
    model.kv.check_integrity()


def test_load_options_are_checked_by_name(device: calrt.Device, tiny_package) -> None:  # type: ignore[no-untyped-def]
    for options, text in (
        ({"cells": 100000}, "cells"),
        ({"lanes": 0}, "lanes"),
        ({"profiles": [3]}, "profile"),
        ({"compute": "f64"}, "compute"),
        ({"kv_dtype": "q8_0"}, "kv_dtype"),
    ):
        with pytest.raises(calrt.CalrtError, match=text):
            device.load(tiny_package, **options)
    with device.load(tiny_package, lanes=2, cells=64, profiles=[1]) as model:
        assert "decode_b1" in model.graphs
        assert "decode_b4" not in model.graphs


def test_progress_is_called_and_its_exception_comes_out(device: calrt.Device, tiny_package) -> None:  # type: ignore[no-untyped-def]
    seen: list[tuple[str, int, int]] = []
    device.load(tiny_package, lanes=1, cells=64, progress=lambda *call: seen.append(call)).close()
    assert seen
    assert all(what == "loading" and 0 <= done <= total for what, done, total in seen)

    def refuse(what: str, done: int, total: int) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        device.load(tiny_package, lanes=1, cells=64, progress=refuse)


def test_missing_and_damaged_packages(device: calrt.Device, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(calrt.PackageError) as caught:
        device.load(tmp_path / "none.gguf")
    assert caught.value.code is calrt.Status.PACKAGE_NOT_FOUND
    (tmp_path / "empty").mkdir()
    with pytest.raises(calrt.PackageError):
        device.load(tmp_path / "empty")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(calrt.PackageError):
        device.load(tmp_path / "bad.gguf")


def test_rows_that_cannot_be_padding_must_all_be_given(tmp_path: Path) -> None:
    """Without an input `lanes` a missing row would write cell 0 of somebody's lane."""
    package = build_preset("dual-chip", driver="null", folder=tmp_path / "package")
    path = package / "manifest.json"
    manifest = json.loads(path.read_text())
    for graph in (graph for graph in manifest["graphs"] if graph["kind"] == "decode"):
        graph["inputs"] = [io for io in graph["inputs"] if io["role"] != "lanes"]
    path.write_text(json.dumps(manifest))
    with calrt.open("null") as device, device.load(package) as model:
        graph = model.graphs["decode_b4"]
        lanes = sorted((model.kv.reserve(4) for _ in range(4)), key=lambda lane: lane.index)
        with pytest.raises(calrt.InvalidArgumentError, match="writes all 4 rows"):
            graph.submit(tokens=[1], positions=[0], lanes=lanes[:1])
        assert [lane.length for lane in lanes] == [0, 0, 0, 0]
        graph.submit(tokens=[1] * 4, positions=[0] * 4, lanes=lanes).wait()
        assert [lane.length for lane in lanes] == [1, 1, 1, 1]
