# SPDX-License-Identifier: Apache-2.0
"""Arguments of calrt's Python part: each refusal is an `InvalidArgumentError` that names the argument.

The native module checks its own the same way (csrc/bind/arguments.h).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, NoReturn

from calrt._enums import Status
from calrt.errors import CalrtError, error_for

__all__ = ["flag", "function", "iterable", "option", "refuse", "seconds", "text", "whole"]


def refuse(name: str, value: object, due: str) -> NoReturn:
    """InvalidArgumentError: what `value` is, and what is due."""
    try:
        shown = repr(value)
    except Exception:  # the caller's own __repr__, or a number too long to write
        shown = ""
    what = shown if 0 < len(shown) <= 40 else f"a {type(value).__name__}"
    raise error_for(Status.INVALID_ARGUMENT, f"{name} is {what}: {due} is due")


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number of low..high; numpy's count, bool and float do not."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        refuse(name, value, "a whole number")
    if not low <= number <= high:
        shown = number if abs(number) < 1 << 128 else "a number of more than 128 bits"
        raise error_for(Status.OUT_OF_RANGE, f"{name}={shown} is outside {low}..{high}")
    return number


def seconds(name: str, value: Any) -> float:
    """A number of seconds, 0 or more; infinity is for ever."""
    if isinstance(value, (str, bytes, bool)) or getattr(value, "ndim", False):
        refuse(name, value, "a number of seconds")
    try:
        number = float(value)
    except (TypeError, ValueError):
        refuse(name, value, "a number of seconds")
    except OverflowError:
        number = math.inf
    if not number >= 0:
        raise error_for(Status.OUT_OF_RANGE, f"{name}={number:g}: seconds >= 0 are due")
    return number


def text(name: str, value: Any) -> str:
    """Text that can be written as UTF-8, without NULs."""
    if not isinstance(value, str):
        refuse(name, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise error_for(
            Status.INVALID_ARGUMENT, f"{name}={value!r} is no valid text: it has a lone surrogate"
        ) from None
    if "\0" in value:
        raise error_for(Status.INVALID_ARGUMENT, f"{name}={value!r} has a NUL character: none may be")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False, nothing that is merely true."""
    if not isinstance(value, bool):
        refuse(name, value, "True or False")
    return value


def function(name: str, value: Any) -> Any:
    """Something that can be called."""
    if not callable(value):
        refuse(name, value, "a function")
    return value


def iterable(name: str, value: Any, due: str) -> list[Any]:
    """The items of an iterable that is no text."""
    if (
        isinstance(value, (str, bytes, bytearray, memoryview))
        or not isinstance(value, Iterable)
        or getattr(value, "ndim", 1) != 1
    ):
        refuse(name, value, due)
    return list(value)


def option(name: str, value: object) -> str:
    """A driver's option, as drivers get them: as text."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (str, int, float)):
        refuse(name, value, "a text or a number")
    try:
        return text(name, str(value))
    except ValueError as error:
        if isinstance(error, CalrtError):
            raise
        refuse(name, value, "a number that can be written")
