# SPDX-License-Identifier: Apache-2.0
"""`error.recover()`: every recovery, on a null device that the fault layer has misbehave."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import calrt
from calrt import recovery
from calrt.errors import error_for

PLENTY = calrt.RecoveryBudget(attempts=1000)
ROWS = calrt._core.status_rows()


class Bench:
    """A model with one lane on a null device whose driver breaks by `rules`."""

    def __init__(self, package: Path, rules: str, lanes: int = 1) -> None:
        self.device = calrt.open("null", layers=f"fault:{rules}")
        self.model = self.device.load(package, lanes=lanes, cells=64)
        self.lane = self.model.kv.reserve(32)

    def submit(self, deadline: float | None = None) -> calrt.Job:
        graph = self.model.graphs["decode_b1"]
        return graph.submit(tokens=[1], positions=[self.lane.length], lanes=[self.lane], deadline=deadline)

    def failure(self, deadline: float | None = None) -> calrt.CalrtError:
        """The error of one job."""
        with pytest.raises(calrt.CalrtError) as caught:
            self.submit(deadline).wait()
        return caught.value

    def met(self, rule: int = 1) -> int:
        """How often a rule was met."""
        counters = self.device.counters()
        return next(value for name, value in counters.items() if name.startswith(f"fault.{rule}."))


@contextmanager
def bench(package: Path, rules: str, lanes: int = 1) -> Iterator[Bench]:
    made = Bench(package, rules, lanes)
    try:
        yield made
    finally:
        made.model.close()
        made.device.close()


# ---- wait ---------------------------------------------------------------------------------------


def test_wait_looks_until_a_lane_is_free(null_package: Path) -> None:
    with bench(null_package, "") as b:
        with pytest.raises(calrt.KvCapacityError) as caught:
            b.model.kv.try_reserve(4)
        threading.Timer(0.1, b.lane.release).start()
        assert caught.value.recover() is None
        lane = b.model.kv.try_reserve(4)
        with pytest.raises(calrt.KvTimeoutError) as late:
            b.model.kv.reserve(4, timeout=0)
        threading.Timer(0.1, lane.release).start()
        again = late.value.recover(lambda: b.model.kv.try_reserve(4))
        assert (again.index, again.length) == (0, 0)


def test_wait_tries_the_call_until_there_is_room(null_package: Path) -> None:
    with bench(null_package, "submit status=QUEUE_FULL times=3 native=9") as b:
        with pytest.raises(calrt.CapacityError, match=r"QUEUE_FULL .calrt 16, native 9.") as caught:
            b.submit()
        job = caught.value.recover(b.submit, budget=calrt.RecoveryBudget(attempts=0))
        assert job.wait().state == "done"
        assert b.met() == 3
        assert b.lane.length == 1


def test_wait_ends_with_the_very_same_error(null_package: Path) -> None:
    with bench(null_package, "") as b:
        with pytest.raises(calrt.KvCapacityError) as caught:
            b.model.kv.try_reserve(4)
        error = caught.value
        why = OSError("as it was")
        error.__cause__ = why
        with pytest.raises(calrt.KvCapacityError) as again:
            error.recover(timeout=0.05)
        assert again.value is error
        assert "timeout=0.05" in str(error.__cause__)
        assert error.__cause__ is not None
        assert error.__cause__.__cause__ is why


def test_wait_lets_other_errors_out(null_package: Path) -> None:
    with bench(null_package, "submit status=QUEUE_FULL nth=1/submit status=DEVICE_LOST nth=2") as b:
        with pytest.raises(calrt.CapacityError) as caught:
            b.submit()
        with pytest.raises(calrt.DeviceLostError):
            caught.value.recover(b.submit)


def test_wait_for_a_device_to_be_well(null_package: Path) -> None:
    rules = "submit status=DEVICE_UNHEALTHY nth=1/device_health status=DEVICE_UNHEALTHY times=2"
    with bench(null_package, rules) as b:
        error = b.failure()
        assert (error.code, error.damage) == (calrt.Status.DEVICE_UNHEALTHY, "device")
        assert error.recover() is None
        assert b.met(2) == 2
        assert b.submit().wait().done


def test_wait_looks_at_a_pool() -> None:
    with calrt.open("null") as device, device.pool(64, count=1) as pool:
        loan = pool.acquire()
        with pytest.raises(calrt.CapacityError) as caught:
            pool.acquire(timeout=0)
        assert caught.value.code is calrt.Status.BUFFER_POOL_EXHAUSTED
        threading.Timer(0.1, loan.close).start()
        assert caught.value.recover() is None
        assert pool.stats()["free"] == 1


def test_wait_needs_a_call_where_nothing_can_be_looked_at(null_package: Path) -> None:
    with bench(null_package, "submit status=OUT_OF_DEVICE_MEMORY nth=1") as b:
        error = b.failure()
        with pytest.raises(calrt.StateError, match="give the call"):
            error.recover()
        assert error.recover(b.submit).wait().done


# ---- retry --------------------------------------------------------------------------------------


def test_retry_waits_for_the_job_again(null_package: Path) -> None:
    with bench(null_package, "completion delay_ms=200") as b:
        job = b.submit()
        with pytest.raises(calrt.WaitTimeoutError) as caught:
            job.wait(timeout=0)
        with pytest.raises(calrt.WaitTimeoutError):
            caught.value.recover(timeout=0)
        assert caught.value.recover(budget=calrt.RecoveryBudget(attempts=0)) is job
        assert job.state == "done"


def test_retry_submits_once_more(null_package: Path) -> None:
    with bench(null_package, "submit status=SUBMIT_FAILED times=3 native=-5") as b:
        with pytest.raises(calrt.ExecutionError, match=r"SUBMIT_FAILED .calrt 21, native -5.") as caught:
            b.submit()
        with pytest.raises(calrt.StateError, match="give the call"):
            caught.value.recover()
        with pytest.raises(calrt.ExecutionError) as second:
            caught.value.recover(b.submit, budget=PLENTY)
        assert b.met() == 2  # once, not until it works
        with pytest.raises(calrt.ExecutionError):
            second.value.recover(b.submit, budget=PLENTY)
        assert caught.value.recover(b.submit, budget=PLENTY).wait().done


def test_retry_of_a_job_that_is_gone_says_so(null_package: Path) -> None:
    with bench(null_package, "completion delay_ms=100") as b:
        with pytest.raises(calrt.WaitTimeoutError) as caught:
            b.submit().wait(timeout=0)
        error = caught.value.with_traceback(None)
        del caught
        gc.collect()
        with pytest.raises(calrt.StateError, match="give the call"):
            error.recover()


# ---- scrub_lane ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["EXECUTION_FAILED", "TRANSFER_FAULT"])
def test_scrub_empties_the_lanes_of_the_job(null_package: Path, status: str) -> None:
    with bench(null_package, f"completion status={status} state=failed nth=2", lanes=2) as b:
        b.submit().wait()
        error = b.failure()
        assert (error.code.name, error.damage) == (status, "job_lanes")
        assert b.model.kv.snapshot(b.lane.index)["state"] == "POISONED"
        with pytest.raises(calrt.KvError, match="KV_POISONED") as poisoned:
            b.submit()
        assert error.recover(budget=PLENTY) == [b.lane.index]
        assert b.lane.length == 0
        b.model.kv.check_integrity()
        assert b.submit().wait().done
        assert b.lane.length == 1
        assert poisoned.value.recover(budget=PLENTY) == []


def test_scrub_leaves_the_lanes_of_other_jobs(null_package: Path) -> None:
    with bench(null_package, "completion status=EXECUTION_FAILED state=failed times=2", lanes=2) as b:
        first, mine = b.failure(), b.lane
        b.lane = b.model.kv.reserve(8)
        second = b.failure()
        assert second.recover(budget=PLENTY) == [b.lane.index]
        assert b.model.kv.snapshot(mine.index)["state"] == "POISONED"
        assert first.recover(budget=PLENTY) == [mine.index]


def test_a_lane_that_does_not_work_is_told_and_given_up(null_package: Path) -> None:
    with bench(null_package, "completion status=EXECUTION_FAILED state=failed") as b:
        error = b.failure()
        for state in ("POISONED", "OFFLINE"):
            with pytest.raises(calrt.StateError, match="lane 0 does not work"):
                error.recover(budget=PLENTY)
            assert b.model.kv.snapshot(0)["state"] == state
        with pytest.raises(calrt.DeviceLostError, match="none of the 1 lanes works any more"):
            b.model.kv.reserve(8)


def test_scrub_then_call(null_package: Path) -> None:
    with bench(null_package, "completion status=TRANSFER_FAULT state=failed nth=1") as b:
        assert b.failure().recover(b.submit, budget=PLENTY).wait().done
        assert b.lane.length == 1


def test_scrub_waits_for_the_driver_to_let_go_of_a_lost_job(null_package: Path) -> None:
    with bench(null_package, "completion delay_ms=400") as b:
        error = b.failure(deadline=0.05)
        assert error.code is calrt.Status.EXECUTION_FAILED
        assert b.model.kv.snapshot(b.lane.index)["job_seq"] != 0
        with pytest.raises(calrt.ExecutionError) as again:
            error.recover(timeout=0, budget=PLENTY)
        assert again.value is error
        assert "still holds its lanes" in str(error.__cause__)
        assert "model.reload()" in str(error.__cause__)
        assert "did not answer within timeout=0 s" in str(error.__cause__)
        assert error.recover(budget=PLENTY) == [b.lane.index]
        b.model.kv.check_integrity()
        assert b.submit().wait().done


# ---- reload_model, reopen_device ----------------------------------------------------------------


def test_reload_is_a_new_generation(null_package: Path) -> None:
    with bench(null_package, "completion status=CCU_FAULT state=failed native=9 nth=1") as b:
        error = b.failure()
        assert str(error).startswith("CCU_FAULT (calrt 25, native 9): ")
        assert isinstance(error, calrt.CcuError)
        with error.recover(budget=PLENTY) as model:
            assert model.generation > b.model.generation
            assert (model.lanes, model.cells) == (b.model.lanes, b.model.cells)
            with pytest.raises(calrt.StateError) as stale:
                b.submit()
            assert stale.value.code is calrt.Status.MODEL_UNLOADED
            with model.kv.reserve(4) as lane:
                job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
                assert job.wait().done


def test_many_failures_replace_a_device_once(null_package: Path) -> None:
    budget = calrt.RecoveryBudget(attempts=1)
    with bench(null_package, "submit status=DEVICE_LOST / device_open delay_ms=200") as b:  # all meet
        failures = [b.failure() for _ in range(8)]
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda error: error.recover(budget=budget), failures))
        assert len({id(answer) for answer in answers}) == 1
        assert budget.left("null") == 0
        answers[0].close()


def test_a_replacement_that_was_closed_is_replaced_itself(null_package: Path) -> None:
    with bench(null_package, "submit status=DEVICE_LOST") as b:
        failures = [b.failure() for _ in range(2)]
        with failures[0].recover(budget=PLENTY) as first:
            assert failures[1].recover(budget=PLENTY) is first
        with failures[1].recover(budget=PLENTY) as second:
            assert second is not first
            assert not second.closed


@pytest.mark.parametrize("rules", ["submit status=DEVICE_LOST", "submit status=30", "submit status=-1"])
def test_reopen_is_the_same_device_anew(null_package: Path, rules: str) -> None:
    with bench(null_package, rules + " nth=1") as b:
        error = b.failure()
        assert error.recovery == "reopen_device"
        if "DEVICE_LOST" not in rules:
            number = rules.split("=")[1]
            assert str(error).startswith(f"INTERNAL (calrt 29, native {number} unmapped): ")
            assert error.status_class == "submit"  # of the entry
        with error.recover(budget=PLENTY) as device:
            assert device.spec == b.device.spec
            assert any(name.startswith("fault.") for name in device.counters())
            assert b.device.closed
            assert b.model.closed
            gone = calrt.DeviceLostError if "DEVICE_LOST" in rules else calrt.StateError  # its lane
            with pytest.raises(gone):
                b.submit()


@pytest.mark.parametrize("status", ["DEVICE_UNHEALTHY", "DEVICE_LOST"])
def test_what_was_never_open_is_opened(status: str) -> None:
    rules = f"fault:device_open status={status}"
    with pytest.raises(calrt.DeviceError) as caught:
        calrt.open("null", layers=rules)
    assert caught.value.device == "null"
    with pytest.raises(calrt.DeviceError) as again:  # each open counts its calls anew, so it fails too
        caught.value.recover(timeout=0.05, budget=PLENTY)
    assert (again.value is caught.value) == (status == "DEVICE_UNHEALTHY")
    with pytest.raises(calrt.DeviceError) as spent:
        caught.value.recover(timeout=0, budget=calrt.RecoveryBudget(attempts=0))
    assert spent.value is caught.value


def test_a_new_device_is_not_made_by_a_call(null_package: Path) -> None:
    with bench(null_package, "submit status=DEVICE_LOST") as b:
        error = b.failure()
        with pytest.raises(calrt.StateError, match="the new device"):
            error.recover(b.submit)


# ---- what only people can do --------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r[5] in ("none", "fix_call") and r[0]], ids=lambda r: r[1]
)
def test_people_are_told_what_to_do(row: tuple[int, str]) -> None:
    error = error_for(row[0], "tokens[3] is -7")
    with pytest.raises(calrt.StateError) as caught:
        error.recover(lambda: pytest.fail("nothing is run"))
    assert row[1] in str(caught.value)
    assert error.recovery in str(caught.value)


# ---- budget and subject -------------------------------------------------------------------------


def test_the_budget_is_a_sliding_window_per_device() -> None:
    now = [0.0]
    budget = calrt.RecoveryBudget(attempts=2, window=10, clock=lambda: now[0])
    budget.spend("a")
    now[0] = 4.0
    budget.spend("a")
    budget.spend("b")
    with pytest.raises(calrt.StateError, match="2 in 10 s, the next in 6 s"):
        budget.spend("a")
    assert (budget.left("a"), budget.left("b"), budget.left("c")) == (0, 1, 2)
    now[0] = 10.0
    budget.spend("a")
    assert budget.left("a") == 0
    now[0] = 14.0
    assert budget.left("a") == 1
    assert (recovery.DEFAULT_BUDGET.attempts, recovery.DEFAULT_BUDGET.window) == (3, 600.0)
    with pytest.raises(calrt.StateError, match="used up"):
        calrt.RecoveryBudget(attempts=0).spend("a")
    for wrong in ({"attempts": -1}, {"window": 0}, {"window": float("nan")}):
        with pytest.raises(calrt.InvalidArgumentError, match=next(iter(wrong))):
            calrt.RecoveryBudget(**wrong)


def test_a_used_up_budget_is_the_cause_of_the_same_error(null_package: Path) -> None:
    # A lane is tried with two jobs the first time, then with one.
    rule = "completion status=EXECUTION_FAILED state=failed nth="
    with bench(null_package, "/".join(rule + nth for nth in "146")) as b:
        budget = calrt.RecoveryBudget(attempts=2)
        for _ in range(2):
            b.failure().recover(budget=budget)
        error = b.failure()
        with pytest.raises(calrt.ExecutionError) as again:
            error.recover(budget=budget)
        assert again.value is error
        assert "2 in 600 s, the next in" in str(error.__cause__)
        assert b.model.kv.snapshot(b.lane.index)["state"] == "POISONED"  # nothing was done


@pytest.mark.parametrize(
    ("rules", "taken"),
    [
        ("submit status=SUBMIT_FAILED", 1),
        ("completion status=EXECUTION_FAILED state=failed", 1),
        ("completion status=CCU_FAULT state=failed", 1),
        ("submit status=DEVICE_LOST", 1),
        ("submit status=QUEUE_FULL", 0),
    ],
)
def test_what_acts_on_a_device_takes_one_from_its_budget(null_package: Path, rules: str, taken: int) -> None:
    with bench(null_package, rules + " nth=1") as b:
        error = b.failure()
        call = b.submit if error.recovery in ("retry", "wait") else None
        if taken:
            with pytest.raises(type(error)) as again:
                error.recover(call, budget=calrt.RecoveryBudget(attempts=0))
            assert again.value is error
            assert isinstance(error.__cause__, calrt.StateError)
            assert not b.model.closed
        budget = calrt.RecoveryBudget(attempts=5)
        answer = error.recover(call, budget=budget)
        assert (budget.left("null"), budget.left("cpu")) == (5 - taken, 5)
        if isinstance(answer, (calrt.Device, calrt.Model)):
            answer.close()


def test_an_error_from_elsewhere_says_so(null_package: Path) -> None:
    with bench(null_package, "submit status=DEVICE_LOST") as b:
        error = b.failure().with_traceback(None)
        with pytest.raises(calrt.StateError, match="pickle"):
            pickle.loads(pickle.dumps(error)).recover()
        other = error_for(27, "gone").about(device=1)
        object.__setattr__(other.subject, "process", os.getpid() + 1)
        with pytest.raises(calrt.StateError, match=f"process {os.getpid() + 1}"):
            other.recover()
    vars(b).clear()
    gc.collect()
    with pytest.raises(calrt.StateError, match="its device is gone"):
        error.recover(budget=PLENTY)


def test_a_timeout_that_is_none_is_refused() -> None:
    for wrong in (-1, float("nan")):
        with pytest.raises(calrt.InvalidArgumentError, match="timeout"):
            error_for(22, "later").recover(timeout=wrong)
