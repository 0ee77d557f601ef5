# SPDX-License-Identifier: Apache-2.0
"""Every error that calrt raises, one class per family of status codes.

`except calrt.CalrtError` catches them all; the classes also derive from the built-in a Python programmer
would expect (`ValueError`, `RuntimeError`, `NotImplementedError`, `TimeoutError`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from calrt._core import status_rows
from calrt._enums import Status

if TYPE_CHECKING:
    from calrt.recovery import RecoveryBudget

_ROWS = {row[0]: row for row in status_rows()}
_INTERNAL = 29


@dataclass(frozen=True)
class Subject:
    """What an error is about: numbers and a weak reference, so that an error keeps nothing alive.

    `process`: pid it was raised in; `device`: serial number of the open device, `model`: generation, each 0
    if it is about none; `thing`: the object whose method failed; `call`: what can be run again as it is.
    """

    process: int = 0
    device: int = 0
    model: int = 0
    thing: weakref.ref[Any] | None = None
    call: Callable[[], Any] | None = None


class CalrtError(Exception):
    """An error of the runtime, a driver or a device.

    The fields say what a program needs to react:

    - `code`: the `Status`; `native_code`: the vendor's own number, 0 if there is none
    - `message`: what was wrong, with the numbers; `where`: entry or stage, perhaps ""
    - `status_class`: argument, package, capacity, kv, submit, ccu or device; of a number that the driver's
      map does not know, the class of the driver's entry that answered it
    - `retryable`: whether the same call can succeed later; `retry`: no, once, wait or yes
    - `damage`: what is affected: none, call, load, handle, lane, job, job_lanes, session, device
    - `recovery`: none, fix_call, wait, retry, scrub_lane, reload_model, reopen_device (`recover`)
    - `device`: spec of the device, `job_id`: job_seq of the job; None where it is about neither

    An error can be copied and pickled: fields and notes stay, the cause becomes its text (`CauseText`), and
    the link to the live objects that `recover` needs stays only in a shallow copy.
    """

    code: Status
    native_code: int
    message: str
    where: str
    status_class: str
    retry: str
    retryable: bool
    damage: str
    recovery: str
    device: str | None
    job_id: int | None

    def __init__(
        self,
        message: str,
        code: int = _INTERNAL,
        *,
        native_code: int = 0,
        where: str = "",
        device: str | None = None,
        job_id: int | None = None,
        unmapped: bool = False,
        status_class: str | None = None,
    ) -> None:
        row = _ROWS.get(int(code), _ROWS[_INTERNAL])
        self.code = Status(code)
        self.native_code = native_code
        self.message = message
        self.where = where
        self.status_class, self.retry, self.damage, self.recovery = row[2:6]
        self.status_class = status_class or self.status_class
        self.retryable = self.retry != "no"
        self.device = device
        self.job_id = job_id
        self._unmapped = unmapped
        self._subject = Subject()
        super().__init__(message)

    def __str__(self) -> str:
        native = f", native {self.native_code}" if self.native_code or self._unmapped else ""
        unmapped = " unmapped" if self._unmapped else ""
        text = self.message or _ROWS.get(int(self.code), _ROWS[_INTERNAL])[7]
        return f"{self.code.name} (calrt {int(self.code)}{native}{unmapped}): {text}"

    def recover(
        self,
        call: Callable[[], Any] | None = None,
        *,
        timeout: float = 60.0,
        budget: RecoveryBudget | None = None,
    ) -> Any:
        """Runs the recovery that this error names and returns what it made.

        - wait: backs off until the capacity is there. With `call`, until it succeeds; returns its answer
        - retry: a job's `WaitTimeoutError` waits for the job again and returns it; else runs `call` once
        - scrub_lane: the lanes that the job left unknown are emptied; returns their numbers, or `call()`
        - reload_model: unloads the model and loads it as before; returns the new `Model`
        - reopen_device: closes the device with its models and opens it as before; returns the new `Device`

        `call` takes no arguments. `timeout` bounds the waiting, in seconds; a call, load or open that has
        begun runs to its own end. Recoveries that do something to a device are counted in `budget`, per
        device (by default `calrt.recovery.DEFAULT_BUDGET`: 3 in 10 minutes).

        Raises this very error again, its `__cause__` saying why, when the time or the budget is used up;
        `StateError` where only a person or the caller can act (fix_call, none), where the subject is
        gone or in another process, or where `call` is needed, or given and of no use.
        """
        from calrt import recovery

        return recovery.recover(self, call, timeout=timeout, budget=budget)

    def about(self, **subject: Any) -> CalrtError:
        """This error, told more of its subject: fields of `Subject`. For those who raise it."""
        self._subject = replace(self._subject, process=os.getpid(), **subject)
        return self

    @property
    def subject(self) -> Subject:
        """What it is about, by number and weakly."""
        return self._subject

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("native_code", "where", "device", "job_id", "status_class")
        fields = {name: getattr(self, name) for name in names}
        arguments = (type(self), self.message, int(self.code), {**fields, "unmapped": self._unmapped})
        cause = self.__cause__
        state = {
            "notes": list(getattr(self, "__notes__", ())),
            "cause": None if cause is None else f"{type(cause).__name__}: {cause}",
        }
        return _rebuild, arguments, state

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        state = state or {}
        if state.get("notes"):
            self.__notes__ = list(state["notes"])
        if state.get("cause") is not None:
            self.__cause__ = CauseText(state["cause"])

    def __copy__(self) -> CalrtError:
        make, arguments, state = self.__reduce__()
        copy: CalrtError = make(*arguments)
        copy.__setstate__({**state, "cause": None})
        copy.__cause__ = self.__cause__
        copy._subject = self._subject
        return copy


class CauseText(Exception):
    """The cause of an error that came out of a pickle: its type and text."""


class InvalidArgumentError(CalrtError, ValueError):
    """An argument is wrong: its meaning, handle, shape, dtype or range (1, 2, 4, 5, 6). Fix the call."""


class StateError(CalrtError, RuntimeError):
    """The object is busy, closed or used in the wrong order (3), or its model is unloaded (12)."""


class UnsupportedError(CalrtError, NotImplementedError):
    """This device, driver or package does not have the capability (7)."""


class PackageError(CalrtError):
    """The package is missing, damaged, rejected or of another version (8 to 11)."""


class CapacityError(CalrtError):
    """Memory, buffers or queue room is exhausted for now (13 to 16). Wait and try again."""


class KvError(CalrtError):
    """Something about KV lanes (17 to 20)."""


class KvCapacityError(KvError, CapacityError):
    """No lane is free (17). Wait and try again."""


class WaitTimeoutError(CalrtError, TimeoutError):
    """Not done yet; nothing changed (22). Wait again."""


class KvTimeoutError(KvError, WaitTimeoutError):
    """No lane came free in time, or a reservation expired (18)."""


class KvSequenceError(KvError, InvalidArgumentError):
    """The sequence operation has no meaning here (20)."""


class ExecutionError(CalrtError):
    """A job was refused, failed, was lost at its deadline, or a transfer failed (21, 24, 26)."""


class CancelledJobError(CalrtError):
    """The job or load was cancelled (23)."""


class CcuError(CalrtError):
    """The device's control unit reported a fault (25). Reload the model."""


class DeviceError(CalrtError):
    """The device is unhealthy or held by another process (28)."""


class DeviceLostError(DeviceError):
    """The device is gone (27). Open it again."""


def _class_of(code: int) -> type[CalrtError]:
    found = globals().get(_ROWS.get(code, _ROWS[_INTERNAL])[6] or "CalrtError")
    return found if isinstance(found, type) and issubclass(found, CalrtError) else CalrtError


def error_for(code: int, message: str, **fields: Any) -> CalrtError:
    """An instance of the class that belongs to `code`; any unknown number is a plain `CalrtError`."""
    return _class_of(code)(message, code, **fields)


def from_native(
    code: int,
    native_code: int,
    message: str,
    where: str,
    device: str,
    job_id: int,
    unmapped: bool,
    status_class: str,
    serial: int,
    generation: int,
    thing: Any,
) -> CalrtError:
    """What the native module calls to make the exception it raises."""
    error = error_for(
        code,
        message,
        native_code=native_code,
        where=where,
        device=device or None,
        job_id=job_id or None,
        unmapped=unmapped,
        status_class=status_class or None,
    )
    return error.about(device=serial, model=generation, thing=None if thing is None else weakref.ref(thing))


def _rebuild(cls: type[CalrtError], message: str, code: int, fields: dict[str, Any]) -> CalrtError:
    return cls(message, code, **fields)
