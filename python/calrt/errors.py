# SPDX-License-Identifier: Apache-2.0
"""Every error that calrt raises, one class per family of status codes.

`except calrt.CalrtError` catches them all; the classes also derive from the built-in a Python programmer
would expect (`ValueError`, `RuntimeError`, `NotImplementedError`, `TimeoutError`).
"""

from __future__ import annotations

from typing import Any

from calrt._core import status_rows
from calrt._enums import Status

_ROWS = {row[0]: row for row in status_rows()}
_INTERNAL = 29


class CalrtError(Exception):
    """An error of the runtime, a driver or a device.

    The fields say what a program needs to react:

    - `code`: the `Status`; `native_code`: the vendor's own number, 0 if there is none
    - `message`: what was wrong, with the numbers; `where`: entry or stage, perhaps ""
    - `status_class`: argument, package, capacity, kv, submit, ccu or device
    - `retryable`: whether the same call can succeed later; `retry`: no, once, wait or yes
    - `damage`: what is affected: none, call, load, handle, lane, job, job_lanes, session, device
    - `recovery`: none, fix_call, wait, retry, scrub_lane, reload_model or reopen_device
    - `device`: spec of the device, `job_id`: job_seq of the job; None where it is about neither
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
    ) -> None:
        row = _ROWS.get(int(code), _ROWS[_INTERNAL])
        self.code = Status(code)
        self.native_code = native_code
        self.message = message
        self.where = where
        self.status_class, self.retry, self.damage, self.recovery = row[2:6]
        self.retryable = self.retry != "no"
        self.device = device
        self.job_id = job_id
        self._unmapped = unmapped
        super().__init__(message)

    def __str__(self) -> str:
        native = f", native {self.native_code}" if self.native_code else ""
        unmapped = " unmapped" if self._unmapped else ""
        return f"{self.code.name} (calrt {int(self.code)}{native}{unmapped}): {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in ("native_code", "where", "device", "job_id")}
        return _rebuild, (type(self), self.message, int(self.code), {**fields, "unmapped": self._unmapped})


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
    code: int, native_code: int, message: str, where: str, device: str, job_id: int, unmapped: bool
) -> CalrtError:
    """What the native module calls to make the exception it raises."""
    return error_for(
        code,
        message,
        native_code=native_code,
        where=where,
        device=device or None,
        job_id=job_id or None,
        unmapped=unmapped,
    )


def _rebuild(cls: type[CalrtError], message: str, code: int, fields: dict[str, Any]) -> CalrtError:
    return cls(message, code, **fields)
