# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one list of codes, the right class for each, fields, texts, pickling."""

from __future__ import annotations

import pickle

import pytest

import calrt
from calrt import _core, errors

# The table of the design, by number: class and, where it helps, the built-in it also is.
CLASSES = {
    1: "InvalidArgumentError",
    2: "InvalidArgumentError",
    3: "StateError",
    4: "InvalidArgumentError",
    5: "InvalidArgumentError",
    6: "InvalidArgumentError",
    7: "UnsupportedError",
    8: "PackageError",
    9: "PackageError",
    10: "PackageError",
    11: "PackageError",
    12: "StateError",
    13: "CapacityError",
    14: "CapacityError",
    15: "CapacityError",
    16: "CapacityError",
    17: "KvCapacityError",
    18: "KvTimeoutError",
    19: "KvError",
    20: "KvSequenceError",
    21: "ExecutionError",
    22: "WaitTimeoutError",
    23: "CancelledJobError",
    24: "ExecutionError",
    25: "CcuError",
    26: "ExecutionError",
    27: "DeviceLostError",
    28: "DeviceError",
    29: "CalrtError",
}


def test_status_is_the_native_list() -> None:
    rows = _core.status_rows()
    assert [(row[0], row[1]) for row in rows] == [(int(s), s.name) for s in calrt.Status]
    assert len(rows) == 30


@pytest.mark.parametrize(("code", "name"), CLASSES.items())
def test_each_code_has_its_class(code: int, name: str) -> None:
    error = errors.error_for(code, "what was wrong")
    assert type(error) is getattr(calrt, name)
    assert isinstance(error, calrt.CalrtError)
    assert error.code is calrt.Status(code)


def test_classes_are_also_the_built_ins_people_expect() -> None:
    for name, builtin in (
        ("InvalidArgumentError", ValueError),
        ("StateError", RuntimeError),
        ("UnsupportedError", NotImplementedError),
        ("WaitTimeoutError", TimeoutError),
        ("KvTimeoutError", TimeoutError),
        ("KvSequenceError", ValueError),
        ("KvCapacityError", calrt.CapacityError),
        ("DeviceLostError", calrt.DeviceError),
    ):
        assert issubclass(getattr(calrt, name), builtin)


def test_fields_follow_the_status_table() -> None:
    error = errors.error_for(17, "none of 4 lanes is free", native_code=9, device="cpu", job_id=5)
    assert (error.status_class, error.retry, error.retryable) == ("kv", "wait", True)
    assert (error.damage, error.recovery) == ("call", "wait")
    assert (error.native_code, error.device, error.job_id) == (9, "cpu", 5)
    assert str(error) == "KV_NO_CAPACITY (calrt 17, native 9): none of 4 lanes is free"
    assert str(errors.error_for(3, "busy")) == "INVALID_STATE (calrt 3): busy"
    assert not errors.error_for(27, "gone").retryable


def test_an_unknown_number_is_a_member_and_an_error_not_a_crash() -> None:
    status = calrt.Status(77)
    assert status.name == "UNKNOWN_77"
    assert int(status) == 77
    error = errors.error_for(77, "odd", native_code=77, unmapped=True)
    assert type(error) is calrt.CalrtError
    assert error.recovery == "reopen_device"
    assert str(error) == "UNKNOWN_77 (calrt 77, native 77 unmapped): odd"
    with pytest.raises(ValueError, match="seven"):
        calrt.Status("seven")


@pytest.mark.parametrize("code", CLASSES)
def test_pickling_keeps_everything(code: int) -> None:
    error = errors.error_for(
        code, "text", native_code=-3, where="submit", device="mock", job_id=9, unmapped=True
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    for name in ("code", "native_code", "message", "where", "device", "job_id", "retryable", "recovery"):
        assert getattr(copy, name) == getattr(error, name)


def test_native_errors_arrive_typed_with_their_device() -> None:
    with pytest.raises(calrt.CalrtError) as caught:
        calrt.open("no-such-driver")
    assert caught.value.device == "no-such-driver"
    assert "no-such-driver" in str(caught.value)
    assert caught.value.code in calrt.Status
