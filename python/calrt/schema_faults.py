# SPDX-License-Identifier: Apache-2.0
"""Checks a document against the part of JSON Schema that calrt's own schemas use, without a library.

type, const, enum, anyOf with null, minimum, exclusiveMinimum, minLength, pattern, items, properties,
required, additionalProperties.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["schema_fault"]

_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def schema_fault(rule: dict[str, Any], value: Any, at: str) -> str | None:
    """What is wrong with `value`, called `at`, by `rule`; None if nothing is."""
    if "anyOf" in rule:
        null, real = (value is None), [option for option in rule["anyOf"] if option != {"type": "null"}]
        fault = None if null else schema_fault(real[0], value, at)
        return fault and f"{fault} (or null, if it is not known)"
    allowed = [rule["const"]] if "const" in rule else rule.get("enum")
    if allowed is not None and value not in allowed:
        return f"{at} is {value!r}: {' or '.join(map(repr, allowed))} is due"
    kind: str | None = rule.get("type")
    if kind is None:
        return None
    if not isinstance(value, _TYPES[kind]) or isinstance(value, bool):
        return f"{at} is {value!r}: {'an' if kind[0] in 'aeiou' else 'a'} {kind} is due"
    faults = {"string": _string_faults, "array": _array_faults, "object": _object_faults}
    return next(filter(None, faults.get(kind, _number_faults)(rule, value, at)), None)


def _number_faults(rule: dict[str, Any], value: Any, at: str) -> Iterator[str | None]:
    try:
        finite = math.isfinite(value)
    except OverflowError:
        yield f"{at} has more than 300 digits: no number is so large"
        return
    if not finite:
        yield f"{at} is {value!r}: a finite number is due"
    if value < rule.get("minimum", -math.inf):
        yield f"{at} is {value!r}: {rule['minimum']} or more is due"
    if value <= rule.get("exclusiveMinimum", -math.inf):
        yield f"{at} is {value!r}: more than {rule['exclusiveMinimum']} is due"


def _string_faults(rule: dict[str, Any], value: Any, at: str) -> Iterator[str | None]:
    if len(value) < rule.get("minLength", 0):
        yield f"{at} is empty"
    if not re.search(rule.get("pattern", ""), value):
        yield f"{at} is {value!r}: {rule['pattern']} is due"


def _array_faults(rule: dict[str, Any], value: Any, at: str) -> Iterator[str | None]:
    yield from (schema_fault(rule["items"], item, f"{at}[{i}]") for i, item in enumerate(value))


def _object_faults(rule: dict[str, Any], value: Any, at: str) -> Iterator[str | None]:
    known, rest = rule.get("properties", {}), rule.get("additionalProperties", {})
    prefix = f"{at}." if at else ""
    yield from (f"{prefix}{name} is missing" for name in rule.get("required", ()) if name not in value)
    for name, item in value.items():
        if name not in known and rest is False:
            yield f"{prefix}{name} is not a field; known: {', '.join(known)}"
        yield schema_fault(known.get(name, rest or {}), item, f"{prefix}{name}")
