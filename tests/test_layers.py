# SPDX-License-Identifier: Apache-2.0
"""Layers from Python: the driver's points F01 to F17 of the fault list, as rules, against the runtime.

What is decided by time here has a ceiling that only a hang reaches; counts, states and types decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt import _core

LONG = 60.0  # seconds; a ceiling


class World:
    """A device that misbehaves, with a model of four lanes, and another one that does not."""

    def __init__(self, rules: str, package: Path) -> None:
        self.device = calrt.open("null", layers=f"fault:{rules}")
        self.model = self.device.load(package, lanes=4, cells=64)
        self.lane: _core.Lane | None = None

    def submit(self, deadline: float | None = None) -> _core.Job:
        """A job on a fresh lane: what a failed one leaves behind is not this test's business."""
        if self.lane is not None:
            self.lane.release()
        self.lane = self.model.kv.reserve(8, timeout=LONG)
        graph = self.model.graphs["decode_b1"]
        return graph.submit(tokens=[1], positions=[0], lanes=[self.lane], deadline=deadline)

    def hits(self, rule: int, target: str) -> int:
        return self.device.counters()[f"fault.{rule}.{target}"]


@pytest.fixture
def world(null_package: Path) -> type[World]:
    """`with world(rules) as w:`; afterwards a healthy device still runs a job."""

    @contextmanager
    def opened(rules: str) -> Iterator[World]:
        made = World(rules, null_package)
        yield made
        made.device.close()
        assert walk("", null_package) == "done"

    return opened  # type: ignore[return-value]


def walk(layers: str, package: Path) -> str:
    """Opens, loads, runs a job, closes; the job's state."""
    with (
        calrt.open("null", layers=layers) as device,
        device.load(package, lanes=1, cells=64) as model,
        model.kv.reserve(4) as lane,
    ):
        graph = model.graphs["decode_b1"]
        return graph.submit(tokens=[1], positions=[0], lanes=[lane]).wait(LONG).state


def outcome(work: Callable[[], object]) -> object:
    """What `work` returns, or the error of calrt's that it raises."""
    try:
        return work()
    except calrt.CalrtError as error:
        return error


def ended(job: _core.Job) -> str:
    until = time.monotonic() + LONG
    while not job.done and time.monotonic() < until:
        time.sleep(0.005)
    return job.state


# ---- opening -------------------------------------------------------------------------------------


def test_layers_by_argument_by_list_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with calrt.open("null", layers="fault:device_health status=28") as device:
        with pytest.raises(calrt.DeviceError):
            device.health()
        assert device.counters()["fault.1.device_health"] == 1
    both = ["fault:device_health status=DEVICE_LOST", "fault:device_health status=28"]
    with calrt.open("null", layers=both) as device, pytest.raises(calrt.DeviceLostError):
        device.health()  # the outermost first
    monkeypatch.setenv("CALRT_LAYERS", "fault:device_health status=27")
    with calrt.open("null") as device, pytest.raises(calrt.DeviceLostError):
        device.health()
    with calrt.open("null", layers="") as device:
        device.health()
        assert not [name for name in device.counters() if name.startswith("fault")]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("trance:", "'trance'"),
        ("fault:submitt status=1", "'submitt' is no target"),
        ("fault:submit status=21 / completion dorp", "rule 2 'completion dorp'"),
        ("fault:submit status=two", "'two'"),
        ("fault:submit status=21 nth=0", "nth"),
    ],
)
def test_layers_without_meaning_name_the_part(layers: str, words: str) -> None:
    with pytest.raises(calrt.InvalidArgumentError, match=words) as caught:
        calrt.open("null", layers=layers)
    assert caught.value.device == "null"


def test_the_drivers_own_options_stay_keywords() -> None:
    with pytest.raises(calrt.InvalidArgumentError, match="no option 'colour'"):
        calrt.open("null", layers="", colour="red")


# ---- the points of the fault list ----------------------------------------------------------------


def test_f01_submit_fails(world: type[World]) -> None:
    with world("submit status=SUBMIT_FAILED native=9 nth=2") as w:
        assert w.submit().wait(LONG).state == "done"
        with pytest.raises(calrt.ExecutionError) as caught:
            w.submit()
        assert (int(caught.value.code), caught.value.native_code) == (21, 9)
        assert w.submit().wait(LONG).state == "done"


def test_f02_accepted_and_never_runs(null_package: Path) -> None:
    w = World("completion drop nth=1", null_package)
    job = w.submit(deadline=0.05)
    with pytest.raises(calrt.ExecutionError, match="lost"):
        job.wait(LONG)
    assert job.state == "lost"
    w.device.close()


def test_f03_and_f06_late_and_out_of_order(world: type[World]) -> None:
    with world("completion swap nth=1") as w:
        first = w.submit(deadline=0.05)
        with pytest.raises(calrt.ExecutionError, match="lost"):
            first.wait(LONG)
        lane = w.model.kv.reserve(8)
        graph = w.model.graphs["decode_b1"]
        assert graph.submit(tokens=[1], positions=[0], lanes=[lane]).wait(LONG).state == "done"
        assert first.state == "lost"  # the late answer came now; it changed nothing


@pytest.mark.parametrize(("how", "state"), [("", "cancelled"), (" cancel=normal", "done")])
def test_f04_after_a_cancel(world: type[World], how: str, state: str) -> None:
    with world(f"completion hold{how}") as w:
        job = w.submit()
        with pytest.raises(calrt.WaitTimeoutError):
            job.wait(0.01)
        assert job.state == "running"
        job.cancel()
        assert ended(job) == state


def test_f05_twice_and_with_a_wrong_tag(world: type[World]) -> None:
    with world("completion twice nth=1 / completion seq=1000000 nth=2") as w:
        assert w.submit().wait(LONG).state == "done"
        with pytest.raises(calrt.ExecutionError, match="lost"):
            w.submit(deadline=0.05).wait(LONG)
        assert w.hits(2, "completion") == 1


def test_f07_part_of_the_input_is_moved(world: type[World]) -> None:
    with world("buffer_transfer short=3 nth=1 / completion short_in=4 nth=2") as w:
        buffer = w.device.alloc(64)
        with pytest.raises(calrt.ExecutionError) as caught:
            buffer.write(np.arange(64, dtype=np.uint8))
        assert caught.value.code == calrt.Status.TRANSFER_FAULT
        assert w.submit().wait(LONG).state == "done"
        with pytest.raises(calrt.ExecutionError) as caught:
            w.submit().wait(LONG)
        assert caught.value.code == calrt.Status.TRANSFER_FAULT


def test_f08_outputs_damaged_or_short(world: type[World]) -> None:
    with world("completion nan nth=1 / completion short_out=2 nth=2") as w:
        job = w.submit().wait(LONG)
        assert np.isnan(job.outputs["logits"].to_f32()).all()
        del job
        with pytest.raises(calrt.ExecutionError) as caught:
            w.submit().wait(LONG)
        assert caught.value.code == calrt.Status.TRANSFER_FAULT


def test_f11_device_lost(world: type[World]) -> None:
    with world("submit status=DEVICE_LOST from=2 / device_health status=DEVICE_LOST") as w:
        assert w.submit().wait(LONG).state == "done"
        for _ in range(3):
            with pytest.raises(calrt.DeviceLostError):
                w.submit()
        with pytest.raises(calrt.DeviceLostError):
            w.device.health()


def test_f12_queue_full(world: type[World]) -> None:
    with world("submit status=QUEUE_FULL every=3") as w:
        outcomes = [outcome(w.submit) for _ in range(9)]
        refused = [error for error in outcomes if isinstance(error, calrt.CapacityError)]
        assert len(refused) == w.hits(1, "submit") == 3
        assert all(error.code == calrt.Status.QUEUE_FULL and error.retryable for error in refused)
        assert all(job.wait(LONG).state == "done" for job in outcomes if isinstance(job, _core.Job))


def test_f13_slow_device(world: type[World]) -> None:
    with world("completion delay_ms=20") as w:
        for _ in range(3):
            job = w.submit()
            assert job.wait(LONG).state == "done"
        assert w.hits(1, "completion") == 3


@pytest.mark.parametrize("number", [30, -1, -(2**31)])
def test_f16_unknown_numbers(world: type[World], number: int) -> None:
    with world(f"submit status={number} nth=1 / completion status={number} nth=1") as w:
        for _ in range(2):
            with pytest.raises(calrt.CalrtError) as caught:
                w.submit().wait(LONG)
            assert (caught.value.code, caught.value.native_code) == (calrt.Status.INTERNAL, number)
            assert f"native {number} unmapped" in str(caught.value)


def test_f17_completes_before_submit_returns(world: type[World]) -> None:
    with world("completion early") as w:
        job = w.submit()
        assert job.done
        assert job.wait(0).state == "done"


# ---- devices that null plays ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["callback", "wait", "poll"])
def test_null_plays_each_way_of_completion(world: type[World], mode: str) -> None:
    with world(f"device_info completion={mode} depth=2") as w:
        assert w.device.info.depth == 2
        for _ in range(20):
            assert w.submit().wait(LONG).state == "done"


@pytest.mark.parametrize("mode", ["wait", "poll"])
def test_late_and_failed_jobs_of_such_devices(world: type[World], mode: str) -> None:
    rules = f"device_info completion={mode} / completion delay_ms=5 nth=1 / completion status=25 nth=2"
    with world(rules) as w:
        assert w.submit().wait(LONG).state == "done"
        with pytest.raises(calrt.CcuError):
            w.submit().wait(LONG)


# ---- every entry ---------------------------------------------------------------------------------

# Entries that this walk calls; the native tests go through all of them.
WALK = [
    "driver_open", "driver_close", "device_count", "device_enumerate", "device_open", "device_close",
    "device_info", "session_open", "session_close", "buffer_alloc", "buffer_free", "model_load",
    "model_unload", "model_info", "submit", "job_wait", "job_query", "job_destroy",
]  # fmt: skip


NOTHING_RETURNED = tuple(
    entry for entry in WALK if entry.endswith(("_close", "_free", "_unload", "_destroy"))
)
CASES = [
    (entry, how)
    for entry in WALK
    for how in ("throw", "throw=other", "status=30", "status=-1")
    if not (entry in NOTHING_RETURNED and how.startswith("status"))
]


@pytest.mark.parametrize(("entry", "how"), CASES)
def test_each_entry_that_fails_is_one_typed_error(null_package: Path, entry: str, how: str) -> None:
    said = outcome(lambda: walk(f"fault:{entry} {how} times=1", null_package))
    if said == "done":
        assert entry in (*NOTHING_RETURNED, "job_wait", "job_query")
    else:
        assert isinstance(said, calrt.CalrtError)
        assert said.code == calrt.Status.INTERNAL
        assert said.message
        assert said.native_code == (int(how[7:]) if how.startswith("status") else 0)
    assert walk("", null_package) == "done"
