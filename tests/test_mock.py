# SPDX-License-Identifier: Apache-2.0
"""The mock device by way of the whole stack: every preset opens, loads, generates, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt.presets import PRESETS

PROMPT = [*range(40, 60)]
PATIENCE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALRT_CACHE", str(folder))
        yield folder


def greedy(model: calrt.Model, prompt: list[int], count: int = 8) -> list[int]:
    return model.generate(prompt, max_tokens=count, temperature=0, stop_tokens=())


# ---- presets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_opens_loads_and_generates(name: str) -> None:
    texts = []
    for _ in range(2):
        with calrt.open(f"mock:{name}", speed=0) as device, device.load(f"preset:{name}") as model:
            assert device.info.driver == "mock"
            assert device.info.device_class == f"mock-{name}"
            assert device.info.id == f"mock:{name}"
            assert model.vocab == PRESETS[name].vocab
            texts.append(model.generate("once", max_tokens=24, seed=3))
            counters = device.counters()
            assert counters["cells_displaced"] == 0
            assert counters["jobs"] == counters["jobs_done"] > 1
    assert texts[0] == texts[1]
    assert len(texts[0]) > 8


def test_mock_alone_is_tiny() -> None:
    with calrt.open("mock") as device:
        assert device.info.device_class == "mock-tiny"
        assert (device.info.completion, device.info.clock) == ("callback", "real")
    with pytest.raises(calrt.InvalidArgumentError, match="it has: tiny, bare"):
        calrt.open("mock:tinny")
    with pytest.raises(calrt.InvalidArgumentError, match="mock knows: clock, completion, speed"):
        calrt.open("mock", clocks="real")


def test_the_large_preset_takes_what_the_model_would() -> None:
    with calrt.open("mock:qwen3-30b-a3b", speed=0) as device:
        free = device.info.memory_free
        with device.load("preset:qwen3-30b-a3b") as model:
            assert model.kv.cells == 40_960
            assert free - device.info.memory_free == 18_187_039_015 + 40_960 * 98_304
    refused = pytest.raises(calrt.CapacityError, match=r"20\.688 GiB of device memory, 19\.531 GiB are free")
    with calrt.open("mock:qwen3-30b-a3b", memory_mb=20_000) as device, refused:
        device.load("preset:qwen3-30b-a3b")


def test_chips_are_used_alone_or_together() -> None:
    with calrt.open("mock:dual-chip", speed=0) as device:
        assert device.topology.sessions == ((0,), (1,))
        with (
            device.load("preset:dual-chip", parallel="tensor") as both,
            device.load("preset:dual-chip") as first,
            device.load("preset:dual-chip", placement="chip:1") as second,
        ):
            assert greedy(both, PROMPT) == greedy(first, PROMPT) == greedy(second, PROMPT)


# ---- one right answer -------------------------------------------------------------------------------


def test_the_answer_is_the_same_on_every_preset_lane_and_clock() -> None:
    answers = set()
    for name in ("tiny", "bare", "dual-chip"):
        with calrt.open(f"mock:{name}", speed=0) as device, device.load(f"preset:{name}") as model:
            answers.add(tuple(greedy(model, PROMPT)))
    for options in ({"clock": "virtual"}, {"completion": "wait"}, {"completion": "poll", "speed": 0}):
        with calrt.open("mock", **options) as device, device.load("preset:tiny") as model:
            with model.sequence(64) as first, model.sequence(64) as second:
                first.prefill([5, 6, 7])
                logits = second.prefill(PROMPT)
                token = int(logits.to_f32().argmax())
                ids = [token]
                for _ in range(7):
                    token = int(second.decode(token).to_f32().argmax())
                    ids.append(token)
            answers.add(tuple(ids))
    assert len(answers) == 1


def test_f32_and_bf16_logits_are_the_same_numbers() -> None:
    rows = []
    for dtype in ("f32", "bf16"):
        with (
            calrt.open("mock", speed=0) as device,
            device.load("preset:tiny", logits_dtype=dtype) as model,
            model.sequence(64) as sequence,
        ):
            rows.append(sequence.prefill(PROMPT).to_f32().copy())
    assert np.array_equal(rows[0], rows[1])


# ---- clocks -----------------------------------------------------------------------------------------


def test_virtual_time_passes_by_waiting_and_is_exact() -> None:
    times = []
    for _ in range(2):
        with calrt.open("mock", clock="virtual") as device, device.load("preset:tiny") as model:
            assert (device.info.completion, device.info.clock) == ("poll", "virtual")
            assert greedy(model, PROMPT)
            times.append(device.counters()["busy_ns"])
    assert times[0] == times[1]
    # Two chunks (16 and 4 tokens) and seven ticks, and what their copies take.
    assert 2 * 150_000 + 7 * 100_000 < times[0] < 2 * 160_000 + 7 * 110_000


def test_an_await_moves_virtual_time() -> None:
    async def run(model: calrt.Model) -> None:
        with model.kv.reserve(tokens=4) as lane:
            job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
            assert (await asyncio.wait_for(job, 60)).state == "done"

    with calrt.open("mock", clock="virtual") as device, device.load("preset:tiny") as model:
        asyncio.run(run(model))


def test_waiting_ends_on_a_device_that_only_waits() -> None:
    with calrt.open("mock:bare", speed=1000) as device, device.load("preset:bare") as model:
        assert device.info.completion == "wait"
        with model.kv.reserve(8) as lane:
            job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
            assert job.wait(PATIENCE_S).state == "done"
            assert job.timing["infer_ns"] == 2_000


def test_each_time_of_a_job_is_the_one_of_its_name() -> None:
    with (
        calrt.open("mock", clock="virtual") as device,
        device.load("preset:tiny") as model,
        model.kv.reserve(8) as a,
        model.kv.reserve(8) as b,
    ):
        graph = model.graphs["decode_b1"]
        with device.trace() as trace:
            jobs = [graph.submit(tokens=[1], positions=[0], lanes=[lane]) for lane in (a, b)]
            for job in jobs:
                assert job.wait(PATIENCE_S).state == "done"
        begins = {(one.job_id, one.name): one.t_ns for one in trace.events if one.phase == "begin"}
        spent = {
            (one.job_id, one.name): one.t_ns - begins[one.job_id, one.name]
            for one in trace.events
            if one.phase == "end"
        }
        first, second = sorted({number for number, _ in begins})
        for number, job in zip((first, second), jobs, strict=True):
            times = job.timing
            stages = [spent[number, name] for name in ("copy in", "decode", "copy out")]
            assert [times["h2d_ns"], times["infer_ns"], times["d2h_ns"]] == stages
        assert jobs[0].timing["queue_ns"] is None  # it began at once
        times = jobs[1].timing
        waited = begins[second, "copy in"] - begins[first, "copy in"]  # both were submitted at once
        assert times["queue_ns"] == waited
        of_second = [times[name] for name in ("queue_ns", "h2d_ns", "infer_ns", "d2h_ns")]
        assert len(set(of_second)) == 4, of_second  # each swap of two would show


def test_the_devices_trace_shows_its_stages() -> None:
    with calrt.open("mock", clock="virtual") as device, device.load("preset:tiny") as model:
        with device.trace() as trace:
            greedy(model, PROMPT)
        names = [event.name for event in trace.events]
        assert {"copy in", "prefill", "decode", "copy out"} == set(names)
        assert [event.t_ns for event in trace.events] == sorted(event.t_ns for event in trace.events)


# ---- ends -------------------------------------------------------------------------------------------


def test_a_cancel_ends_a_job_once() -> None:
    with calrt.open("mock", clock="virtual") as device, device.load("preset:tiny") as model:
        graph = model.graphs["decode_b1"]
        with model.kv.reserve(8) as first, model.kv.reserve(8) as second:
            running = graph.submit(tokens=[1], positions=[0], lanes=[first])
            queued = graph.submit(tokens=[1], positions=[0], lanes=[second])
            queued.cancel()
            with pytest.raises(calrt.CancelledJobError):
                queued.wait(PATIENCE_S)
            assert queued.state == "cancelled"
            assert running.wait(PATIENCE_S).state == "done"
            assert device.counters()["jobs_cancelled"] == 1


def test_bare_cannot_cancel_and_says_so() -> None:
    with calrt.open("mock:bare", speed=0.1) as device, device.load("preset:bare") as model:
        with model.kv.reserve(8) as lane:
            job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
            with pytest.raises(calrt.UnsupportedError, match="mock-bare cannot cancel"):
                job.cancel()
            assert job.wait(PATIENCE_S).state == "done"
        absent = {cap.name for cap in device.caps if cap.value == 0 and cap.source == "bare: absent"}
        assert {"cancel", "lane_copy", "kv_read", "kv_write", "k_rotate"} <= absent


def test_a_device_closes_under_running_jobs() -> None:
    device = calrt.open("mock", speed=0.01)
    model = device.load("preset:tiny")
    lanes = [model.kv.reserve(8) for _ in range(3)]
    jobs = [model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane]) for lane in lanes]
    model.close(force=True)
    device.close(force=True)
    for job in jobs:
        with suppress(calrt.CalrtError):
            job.wait(PATIENCE_S)
        assert job.state in ("done", "failed", "cancelled")
