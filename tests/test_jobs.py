# SPDX-License-Identifier: Apache-2.0
"""Jobs on devices that are slow, silent or refuse: no wait harms a job, none holds the GIL, all end once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calrt
from calrt._await import watcher_of

PATIENCE_S = 60.0
ENDS = ("done", "failed", "cancelled", "lost")


@pytest.fixture
def null_model(null_package: Path) -> Iterator[calrt.Model]:
    with opened(null_package, "fault:") as model:
        yield model


@contextlib.contextmanager
def opened(package: Path, layers: str, lanes: int = 4) -> Iterator[calrt.Model]:
    with calrt.open("null", layers=layers) as device, device.load(package, lanes=lanes, cells=128) as model:
        yield model


def submit(model: calrt.Model, lane: calrt.kv.Lane, **options: float) -> calrt.Job:
    return model.graphs["decode_b1"].submit(tokens=[1], positions=[lane.length], lanes=[lane], **options)


class Counting:
    """A second Python thread that counts while the block runs."""

    def __enter__(self) -> Counting:
        self.counted = 0
        self._stop = False
        self._thread = threading.Thread(target=self._count)
        self._thread.start()
        return self

    def _count(self) -> None:
        while not self._stop:
            self.counted += 1

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join(PATIENCE_S)


# ---- the GIL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "slot"),
    [("fault:submit delay_ms=300", False), ("fault:submit delay_ms=300", True)],
)
def test_a_submit_that_blocks_in_the_driver_leaves_the_gil(
    null_package: Path, layers: str, slot: bool
) -> None:
    with opened(null_package, layers) as model, model.kv.reserve(8) as lane, Counting() as thread:
        context = model.graphs["decode_b1"].context(lanes=[lane])
        before = thread.counted
        begin = time.monotonic()
        job = context[0].submit() if slot else submit(model, lane)
        assert time.monotonic() - begin >= 0.3
        # Held for 0.3 s the GIL would let the other thread in only at the two ends of the call.
        assert thread.counted - before > 10_000
        assert job.wait().state == "done"


def test_a_wait_leaves_the_gil_and_ends_at_its_timeout(null_package: Path) -> None:
    with opened(null_package, "fault:completion hold cancel=normal") as model, model.kv.reserve(8) as lane:
        job = submit(model, lane)
        with Counting() as thread:
            before = thread.counted
            begin = time.monotonic()
            with pytest.raises(calrt.WaitTimeoutError, match="nothing changed") as caught:
                job.wait(0.3)
            assert time.monotonic() - begin >= 0.3
            assert thread.counted - before > 10_000
        assert caught.value.job_id == job.job_seq
        job.cancel()
        assert job.wait(PATIENCE_S).state == "done"


def test_a_completion_that_never_comes_ends_at_the_deadline(null_package: Path) -> None:
    with opened(null_package, "fault:completion drop nth=1") as model:
        lane = model.kv.reserve(8)
        begin = time.monotonic()
        job = submit(model, lane, deadline=0.3)
        with pytest.raises(calrt.ExecutionError, match="lost"):
            job.wait()
        assert 0.3 <= time.monotonic() - begin < PATIENCE_S
        assert job.state == "lost"
        with pytest.raises(calrt.StateError, match="lost"):
            _ = job.timing
        with model.kv.reserve(8) as other:
            assert submit(model, other).wait().state == "done"


def test_an_await_of_a_completion_that_never_comes_ends_at_the_deadline(null_package: Path) -> None:
    async def run(model: calrt.Model) -> None:
        with model.kv.reserve(8) as lane, pytest.raises(calrt.ExecutionError, match="lost"):
            await submit(model, lane, deadline=0.3)

    with opened(null_package, "fault:completion drop") as model:
        asyncio.run(asyncio.wait_for(run(model), PATIENCE_S))


# ---- waiting ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    delays=st.lists(st.integers(0, 30), min_size=1, max_size=4), timeout=st.sampled_from([0.0, 0.001, 0.01])
)
def test_waiting_in_slices_never_harms_a_job(null_package: Path, delays: list[int], timeout: float) -> None:
    rules = "/".join(f"completion delay_ms={ms} nth={n}" for n, ms in enumerate(delays, 1))
    with opened(null_package, f"fault:{rules}") as model, model.kv.reserve(len(delays)) as lane:
        for step in range(len(delays)):
            job = submit(model, lane, deadline=PATIENCE_S)
            while not job.done:
                with contextlib.suppress(calrt.WaitTimeoutError):
                    job.wait(timeout)
            assert lane.length == step + 1  # known as soon as the job is done
            assert job.wait(0) is job
            assert job.state == "done"
        model.kv.check_integrity()


def test_a_cancelled_await_is_forgotten(null_package: Path) -> None:
    async def run(model: calrt.Model, lane: calrt.kv.Lane) -> None:
        job = submit(model, lane, deadline=1)
        watcher = watcher_of(asyncio.get_running_loop())
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(job, 0.01)
            assert watcher == {}  # though the driver never tells the job's end
        with pytest.raises(calrt.ExecutionError, match="lost"):
            job.wait(PATIENCE_S)

    with opened(null_package, "fault:completion drop") as model:
        asyncio.run(run(model, model.kv.reserve(4)))


def test_a_done_job_does_not_touch_the_loop(null_model: calrt.Model) -> None:
    async def run() -> int:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        with null_model.kv.reserve(8) as lane:
            for _ in range(8):
                assert (await submit(null_model, lane)).state == "done"
        return turns

    assert asyncio.run(run()) == 0


def test_one_job_may_be_awaited_by_many_and_from_two_loops(null_package: Path) -> None:
    async def run(job: calrt.Job) -> int:
        return len(await asyncio.gather(*(asyncio.ensure_future(job) for _ in range(5))))

    with opened(null_package, "fault:completion delay_ms=50") as model, model.kv.reserve(8) as lane:
        job = submit(model, lane)
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(asyncio.run(run(job)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert counts == [5, 5]


# ---- threads ----------------------------------------------------------------------------------------


def test_two_threads_submit_cancel_and_release_on_one_model(null_package: Path) -> None:
    # Two failures: a third could be the second in vain of the jobs that try a lane, which ends it.
    layers = "fault:completion delay_ms=1 every=3/completion status=EXECUTION_FAILED every=7 times=2"
    ended: list[str] = []
    failures: list[BaseException] = []

    def work(model: calrt.Model, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(150):
                with contextlib.suppress(calrt.CapacityError, calrt.KvError), model.kv.reserve(8) as lane:
                    job = submit(model, lane)
                    choice = rng.integers(4)
                    if choice == 0:
                        job.cancel()
                    if choice == 1:
                        lane.release()
                    with contextlib.suppress(calrt.ExecutionError, calrt.CancelledJobError):
                        job.wait(PATIENCE_S)
                    ended.append(job.state)
        except BaseException as error:
            failures.append(error)

    with opened(null_package, layers) as model:
        threads = [threading.Thread(target=work, args=(model, seed)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
        assert failures == []
        assert len(ended) == 300
        assert set(ended) <= set(ENDS)
        model.kv.scrub()
        assert model.kv.free_lanes() == 4
        model.kv.check_integrity()


# ---- arguments and looks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lanes": 3}, "lanes is a int: a list of Lanes"),
        ({"lanes": "ab"}, "lanes is a str: a list of Lanes"),
        ({"lanes": [None]}, r"lanes\[0\] is a NoneType"),
        ({"n_valid": "1"}, "n_valid is a str, not a whole number"),
        ({"n_valid": -1}, "n_valid=-1 is outside 0"),
        ({"deadline": "soon"}, "deadline is a str, not a number"),
        ({"deadline": True}, "deadline is a bool, not a number"),
        ({"logit_rows": 1.5}, "logit_rows is a float"),
        ({"tokens": None}, "tokens is a NoneType"),
        ({"positions": object()}, "positions is a object"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(
    null_model: calrt.Model, change: dict[str, object], text: str
) -> None:
    with null_model.kv.reserve(4) as lane:
        call = {"tokens": [1], "positions": [0], "lanes": [lane], **change}
        with pytest.raises(calrt.InvalidArgumentError, match=text):
            null_model.graphs["decode_b1"].submit(**call)  # type: ignore[arg-type]
        context = null_model.graphs["decode_b1"].context(lanes=[lane])
        if "deadline" in change or "lanes" in change or "n_valid" in change:
            with pytest.raises(calrt.InvalidArgumentError, match=text):
                context[0].submit(**change)  # type: ignore[arg-type]
        assert submit(null_model, lane).wait(1).state == "done"
        with pytest.raises(calrt.InvalidArgumentError, match="timeout is a str"):
            submit(null_model, lane).wait("1")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["list", "int32", "int64", "strided", "readonly", "tuple", "big"])
def test_inputs_are_read_alike_however_they_lie(model: calrt.Model, kind: str) -> None:
    def given_as(values: list[int]) -> object:
        if kind in ("list", "tuple"):
            return values if kind == "list" else tuple(values)
        if kind == "strided":
            return np.repeat(np.array(values, np.int32), 2)[::2]
        array = np.array(values, {"int64": np.int64, "big": ">i4"}.get(kind, np.int32))
        array.setflags(write=kind != "readonly")
        return array

    rows = []
    for convert in (list, given_as):
        with model.kv.reserve(4) as a, model.kv.reserve(4) as b:
            graph = model.graphs["decode_b4"]
            job = graph.submit(tokens=convert([5, 9]), positions=convert([0, 0]), lanes=[a, b])  # type: ignore[arg-type]
            rows.append(job.wait().outputs["logits"].to_f32())
    assert (rows[0] == rows[1]).all()


def test_timing_says_what_was_measured_and_nothing_else(model: calrt.Model, null_model: calrt.Model) -> None:
    for of, measured in ((model, True), (null_model, False)):
        with of.kv.reserve(4) as lane:
            begin = time.monotonic_ns()
            timing = submit(of, lane).wait().timing
        assert list(timing) == ["submitted_ns", "queue_ns", "h2d_ns", "infer_ns", "d2h_ns"]
        assert timing["submitted_ns"] is not None
        assert begin <= timing["submitted_ns"] <= time.monotonic_ns()
        assert (timing["infer_ns"] is not None) == measured
        assert all(value is None or value > 0 for value in timing.values())


def test_objects_show_what_they_are(null_model: calrt.Model) -> None:
    graph = null_model.graphs["decode_b4"]
    assert repr(graph) == "<calrt.Graph 'decode_b4': decode, batch 4, lane_map any>"
    assert repr(null_model.kv) == "<calrt.Kv: 4 of 4 lanes free, 128 cells each>"
    with null_model.kv.reserve(16) as lane, graph.context(slots=2, lanes=[lane]) as context:
        assert repr(lane) == f"<calrt.Lane {lane.index}: 0 of 16 cells>"
        assert repr(context) == "<calrt.GraphContext of 'decode_b4': 2 slots>"
        slot = context[0]
        assert repr(slot) == "<calrt.BindingSlot of 'decode_b4': idle>"
        job = slot.submit().wait()
        assert repr(job) == f"<calrt.Job {job.job_seq} of 'decode_b4': done>"
        assert repr(slot) == f"<calrt.BindingSlot of 'decode_b4': job {job.job_seq} ended>"
        assert repr(job.outputs["logits"]).startswith("<calrt.Tensor f32 (1, 384)")
        assert repr(lane) == f"<calrt.Lane {lane.index}: 1 of 16 cells>"
    assert repr(context) == "<calrt.GraphContext of 'decode_b4': closed>"
    assert repr(slot) == "<calrt.BindingSlot of 'decode_b4': closed>"
    assert repr(lane) == f"<calrt.Lane {lane.index}: released>"


# ---- lanes held by oneself --------------------------------------------------------------------------


def test_waiting_for_lanes_one_holds_oneself_fails_at_once(
    null_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # other tests may have left one behind
    with opened(null_package, "fault:", lanes=2) as model:
        begin = time.monotonic()
        with model.sequence(4), model.sequence(4), pytest.raises(calrt.KvCapacityError, match="all 2 lanes"):
            model.sequence(4)
        with (
            model.sequence(4),
            contextlib.closing(model.generate([1], stream=True, max_tokens=4, temperature=0)) as ids,
        ):  # type: ignore[type-var]
            next(ids)
            with pytest.raises(calrt.KvCapacityError, match="close a sequence"):
                model.generate([1], max_tokens=1)
        assert time.monotonic() - begin < 6.0  # a wait would be 60 s
        with model.sequence(4), model.sequence(4):
            pass


def test_another_thread_may_give_a_lane_back(null_package: Path) -> None:
    with opened(null_package, "fault:", lanes=1) as model:
        first = model.sequence(4)
        timer = threading.Timer(0.05, first.close)
        timer.start()
        with model.sequence(4, timeout=PATIENCE_S) as second:
            assert second.length == 0
        timer.join()
