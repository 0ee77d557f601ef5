# SPDX-License-Identifier: Apache-2.0
"""Status codes as a Python enum. A test holds it equal to the native list."""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import Any, TypeVar

_E = TypeVar("_E", bound="OpenIntEnum")


class OpenIntEnum(IntEnum):
    """An enum of numbers that others may add to: an unknown one is a member UNKNOWN_n, never a ValueError.

    Such a member is not in the list of members; it compares, hashes, formats, copies and pickles like one.
    """

    @classmethod
    def _missing_(cls: type[_E], value: object) -> _E | None:
        number: Any = value
        try:
            number = operator.index(number)
        except TypeError:
            return None
        known = cls._value2member_map_.get(number)
        if known is not None:  # the same number in another type
            return known  # type: ignore[return-value]
        member = int.__new__(cls, number)
        member._name_ = f"UNKNOWN_{number}"
        member._value_ = number
        return member


class Status(OpenIntEnum):
    """calrt's status codes, 0 to 29. A number outside becomes a member UNKNOWN_n."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    INVALID_STATE = 3
    SHAPE_MISMATCH = 4
    DTYPE_MISMATCH = 5
    OUT_OF_RANGE = 6
    UNSUPPORTED = 7
    VERSION_MISMATCH = 8
    PACKAGE_NOT_FOUND = 9
    PACKAGE_CORRUPT = 10
    PACKAGE_REJECTED = 11
    MODEL_UNLOADED = 12
    OUT_OF_HOST_MEMORY = 13
    OUT_OF_DEVICE_MEMORY = 14
    BUFFER_POOL_EXHAUSTED = 15
    QUEUE_FULL = 16
    KV_NO_CAPACITY = 17
    KV_TIMEOUT = 18
    KV_POISONED = 19
    KV_INVALID_SEQUENCE = 20
    SUBMIT_FAILED = 21
    WAIT_TIMEOUT = 22
    CANCELLED = 23
    EXECUTION_FAILED = 24
    CCU_FAULT = 25
    TRANSFER_FAULT = 26
    DEVICE_LOST = 27
    DEVICE_UNHEALTHY = 28
    INTERNAL = 29
