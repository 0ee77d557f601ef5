# SPDX-License-Identifier: Apache-2.0
"""What `error.recover()` does: one table from the name of a recovery to its action, and a budget.

An error points at its subject by number, and the registries here are weak: neither keeps a device, a model
or a job alive. Recoveries of one device run one at a time, and a device or model that was already replaced
is not replaced again: many requests may fail together and each may call `recover`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

from calrt._arguments import function, refuse, seconds, text, whole
from calrt._core import BufferPool, Job
from calrt._enums import Status
from calrt.errors import CalrtError, StateError, error_for

if TYPE_CHECKING:
    from calrt.device import Device
    from calrt.model import Model

__all__ = ["DEFAULT_BUDGET", "RecoveryBudget"]

devices: WeakValueDictionary[int, Device] = WeakValueDictionary()
"""Open devices by serial number."""
models: WeakValueDictionary[int, Model] = WeakValueDictionary()
"""Loaded models by generation."""

_successors: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
os.register_at_fork(after_in_child=_locks.clear)

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


class RecoveryBudget:
    """How often a device may be recovered: `attempts` within any `window` seconds, each device by its spec.

    Thread-safe. Waiting for capacity is free; what acts on a device is not. `clock` answers seconds.
    """

    def __init__(
        self, attempts: int = 3, window: float = 600.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.attempts = whole("attempts", attempts, 0, (1 << 31) - 1)
        self.window = seconds("window", window)
        if self.window == 0:
            raise error_for(Status.OUT_OF_RANGE, f"window={window}: seconds > 0 are due")
        self._clock = function("clock", clock)
        self._spent: defaultdict[str, deque[float]] = defaultdict(deque)
        self._lock = threading.Lock()

    def left(self, device: str) -> int:
        """Recoveries that `device` may still have now."""
        text("device", device)
        with self._lock:
            return self.attempts - len(self._current(device))

    def spend(self, device: str) -> None:
        """Takes one; `StateError` saying when the next is due if there is none."""
        text("device", device)
        with self._lock:
            spent = self._current(device)
            if len(spent) >= self.attempts:
                more = f", the next in {spent[0] + self.window - self._clock():.0f} s" if spent else ""
                message = (
                    f"recoveries of device {device!r} are used up: {self.attempts} in {self.window:g} s{more}"
                )
                raise error_for(Status.INVALID_STATE, message, device=device)
            spent.append(self._clock())

    def _current(self, device: str) -> deque[float]:
        spent = self._spent[device]
        while spent and self._clock() - spent[0] >= self.window:
            spent.popleft()
        return spent


DEFAULT_BUDGET = RecoveryBudget()
"""Shared by every `recover` that is given no budget."""


@dataclass
class _Attempt:
    """One `recover()`: the error, what the caller gave, and until when."""

    error: CalrtError
    call: Callable[[], Any] | None
    timeout: float
    budget: RecoveryBudget
    until: float

    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def spend(self) -> None:
        """One attempt of the device's budget, or the original error again."""
        try:
            self.budget.spend(self.error.device or "")
        except StateError as spent:
            self.give_up(spent)

    def give_up(self, why: str | CalrtError) -> NoReturn:
        reason = why if isinstance(why, CalrtError) else error_for(Status.WAIT_TIMEOUT, why)
        reason.__cause__ = self.error.__cause__
        raise self.error from reason

    def refusal(self, why: str) -> CalrtError:
        return error_for(Status.INVALID_STATE, f"{self.error.code.name}: {why}", device=self.error.device)

    def model(self) -> Model | None:
        return models.get(self.error.subject.model)

    def thing(self) -> Any:
        reference = self.error.subject.thing
        return None if reference is None else reference()

    def device(self) -> Device | None:
        return devices.get(self.error.subject.device)

    def until_ready(self, ready: Callable[[], bool], what: str) -> None:
        """Asks `ready` with growing, jittered pauses; the original error again when the time is over."""
        pause = _FIRST_PAUSE
        while not ready():
            if self.left() == 0:
                self.give_up(f"{what} within timeout={self.timeout:g} s")
            time.sleep(min(pause * random.uniform(0.5, 1.0), self.left()))
            pause = min(2 * pause, _LONGEST_PAUSE)


def recover(
    error: CalrtError,
    call: Callable[[], Any] | None = None,
    *,
    timeout: float = 60.0,
    budget: RecoveryBudget | None = None,
) -> Any:
    """See `CalrtError.recover`."""
    timeout = seconds("timeout", timeout)
    if call is not None:
        function("call", call)
    if budget is not None and not isinstance(budget, RecoveryBudget):
        refuse("budget", budget, "a RecoveryBudget")
    attempt = _Attempt(error, call, timeout, budget or DEFAULT_BUDGET, time.monotonic() + timeout)
    return _ACTIONS[error.recovery](attempt)


# ---- wait ---------------------------------------------------------------------------------------


def _wait(attempt: _Attempt) -> Any:
    """Until the capacity is there: by trying the call if there is one, else by looking."""
    call = attempt.call or attempt.error.subject.call
    if call is not None:
        return _until_it_works(attempt, call)
    _check_subject(attempt)
    attempt.until_ready(_probe(attempt), "the capacity was not there")
    return None


def _until_it_works(attempt: _Attempt, call: Callable[[], Any]) -> Any:
    answer: list[Any] = []

    def works() -> bool:
        try:
            answer.append(call())
        except CalrtError as error:
            if error.recovery != "wait":
                raise
            return False
        return True

    attempt.until_ready(works, "the call did not succeed")
    return answer[0]


def _probe(attempt: _Attempt) -> Callable[[], bool]:
    """What says that the subject has room again."""
    code, model, device = attempt.error.code, attempt.model(), attempt.device()
    if code in (Status.KV_NO_CAPACITY, Status.KV_TIMEOUT) and model is not None:
        kv = model.kv
        return lambda: bool(kv.can_allocate(1)["now"])
    if code is Status.BUFFER_POOL_EXHAUSTED and isinstance(pool := attempt.thing(), BufferPool):
        return lambda: pool.stats()["free"] > 0
    if code is Status.DEVICE_UNHEALTHY and device is not None:
        return partial(_healthy, device)
    raise attempt.refusal(
        "nothing here can tell when there is room: give the call, error.recover(lambda: ...)"
    )


def _healthy(device: Device) -> bool:
    try:
        return bool(device.health()["state"] == "ok")
    except CalrtError as error:
        if error.recovery != "wait":
            raise
        return False


# ---- retry --------------------------------------------------------------------------------------


def _retry(attempt: _Attempt) -> Any:
    """Once. A wait changes nothing and costs no budget; what was refused by a device does."""
    error = attempt.error
    if attempt.call is not None:
        if error.damage != "none":
            attempt.spend()
        return attempt.call()
    _check_subject(attempt)
    if error.code is Status.WAIT_TIMEOUT and isinstance(job := attempt.thing(), Job):
        return job.wait(timeout=attempt.timeout)
    raise attempt.refusal("an error keeps no arguments: give the call, error.recover(lambda: ...)")


# ---- scrub_lane ---------------------------------------------------------------------------------


def _scrub_lane(attempt: _Attempt) -> Any:
    """The lanes of the failed job are emptied, once no job writes them any more."""
    _check_subject(attempt)
    model = attempt.model()
    if model is None:
        raise attempt.refusal("its model is gone, and its lanes with it")
    kv, job = model.kv, attempt.error.job_id or 0
    if model.closed:
        raise attempt.refusal("its model is closed, and its lanes are gone with it")
    attempt.spend()

    def quiet() -> bool:
        return job == 0 or all(kv.snapshot(lane)["job_seq"] != job for lane in range(kv.lanes))

    def failed_scrubs() -> list[int]:
        return [kv.snapshot(lane)["failed_scrubs"] for lane in range(kv.lanes)]

    emptied: list[int] = []

    def scrubbed() -> bool:  # a lost job holds its lanes until the driver has answered
        was_quiet, before = quiet(), failed_scrubs()
        emptied.extend(kv.scrub(job))
        for lane, (once, now) in enumerate(zip(before, failed_scrubs(), strict=True)):
            if now > once:
                again = "it may be tried once more" if now == 1 else "load the model again"
                raise attempt.refusal(f"lane {lane} does not work: {again}")
        return was_quiet

    attempt.until_ready(
        scrubbed,
        f"job {job} still holds its lanes (model.reload() leaves them behind): the device did not answer",
    )
    return sorted(emptied) if attempt.call is None else attempt.call()


# ---- reload_model, reopen_device ----------------------------------------------------------------


def _reload_model(attempt: _Attempt) -> Any:
    """The same package with the same options, as a new generation."""
    _check_subject(attempt)
    model = attempt.model()
    return _replace(attempt, "model", attempt.error.subject.model, None if model is None else model.reload)


def _reopen_device(attempt: _Attempt) -> Any:
    """The same spec with the same options, as a new device; its models go with the old one."""
    subject = attempt.error.subject
    if subject.call is not None:  # it was never open
        attempt.spend()
        return subject.call()
    _check_subject(attempt)
    device = attempt.device()
    return _replace(attempt, "device", subject.device, None if device is None else device.reopen)


def _replace(attempt: _Attempt, kind: str, number: int, make: Callable[[], Any] | None) -> Any:
    if attempt.call is not None:
        raise attempt.refusal(f"recover() returns the new {kind}; make the call on that, not as an argument")
    with _locks[attempt.error.device or ""]:
        known = _successors.get((kind, number))
        if known is not None and not known.closed:
            return known
        if make is None:
            raise attempt.refusal(f"its {kind} is gone: open or load it again")
        attempt.spend()
        made = make()
        _successors[kind, number] = made
        return made


# ---- what only people can do --------------------------------------------------------------------

_ADVICE = {
    Status.UNSUPPORTED: "use a device or driver that has the capability",
    Status.VERSION_MISMATCH: "bring calrt, driver and package to versions that fit",
    Status.PACKAGE_NOT_FOUND: "check the path",
    Status.PACKAGE_CORRUPT: "get the package anew",
    Status.PACKAGE_REJECTED: "the package has to be built anew; the findings say why",
    Status.MODEL_UNLOADED: "load the model and use its new handles",
    Status.CANCELLED: "somebody cancelled it: submit again if it is still wanted",
}


def _person(attempt: _Attempt) -> NoReturn:
    error = attempt.error
    if error.recovery == "fix_call":
        advice = f"the call has to be changed: {error.message}"
    else:
        advice = _ADVICE.get(error.code, "nothing is to be recovered")
    raise attempt.refusal(f"recovery {error.recovery} is not for a program: {advice}")


def _check_subject(attempt: _Attempt) -> None:
    """StateError where the error no longer knows what it is about."""
    process = attempt.error.subject.process
    if process == 0:
        raise attempt.refusal(
            "it came out of a pickle, or is about no device: recover it where it was raised"
        )
    if process != os.getpid():
        raise attempt.refusal(f"the error is about objects of process {process}: recover it there")


_ACTIONS: dict[str, Callable[[_Attempt], Any]] = {
    "none": _person,
    "fix_call": _person,
    "wait": _wait,
    "retry": _retry,
    "scrub_lane": _scrub_lane,
    "reload_model": _reload_model,
    "reopen_device": _reopen_device,
}
