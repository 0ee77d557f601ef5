# SPDX-License-Identifier: Apache-2.0
"""How many slots of how many tokens: what was asked for, fitted to what the package allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

Allowed: TypeAlias = "Sequence[int] | Mapping[str, int]"
"""Values a package allows: a list, or min, max and step."""

DEFAULT_SLOTS = 4


class Geometry(Struct, frozen=True):
    """Lanes of cells each, and what the user should know about the choice."""

    lanes: int
    cells: int
    notes: tuple[str, ...]


def choose(ctx_size: int, parallel: int, context: int, lanes: Allowed, cells: Allowed) -> Geometry:
    """`ctx_size` tokens (0 = the model's `context`) in `parallel` slots (-1 = 4).

    Raises ValueError with the allowed values when nothing fits.
    """
    notes: list[str] = []
    wanted_lanes = DEFAULT_SLOTS if parallel < 0 else parallel
    fitted_lanes = _fit(wanted_lanes, lanes)
    if fitted_lanes is None or (parallel >= 1 and fitted_lanes != wanted_lanes):
        raise ValueError(f"--parallel {wanted_lanes}: this package allows {_describe(lanes)} slots")
    if fitted_lanes != wanted_lanes:
        notes.append(f"{fitted_lanes} slots instead of {wanted_lanes}: the package allows {_describe(lanes)}")
    total = ctx_size or context
    each = total // fitted_lanes
    if each > context:
        notes.append(f"slots are cut from {each} to {context} tokens: the model's context")
        each = context
    fitted = _fit(each, cells)
    if fitted is None:
        raise ValueError(
            f"--ctx-size {total} with {fitted_lanes} slots gives {each} tokens a slot; this package allows "
            f"{_describe(cells)}: raise --ctx-size or lower --parallel"
        )
    if fitted != each:
        notes.append(f"slots have {fitted} tokens instead of {each}: the package allows {_describe(cells)}")
    return Geometry(fitted_lanes, fitted, tuple(notes))


def _fit(wanted: int, allowed: Allowed) -> int | None:
    """The largest allowed value up to `wanted`."""
    if isinstance(allowed, Mapping):
        low, high, step = allowed["min"], allowed["max"], allowed.get("step", 1)
        if wanted < low:
            return None
        # The grid is multiples of the step from the step on; the ends count even when they are off it.
        return high if wanted >= high else max(low, wanted // step * step)
    return max((value for value in allowed if value <= wanted), default=None)


def _describe(allowed: Allowed) -> str:
    if isinstance(allowed, Mapping):
        step = allowed.get("step", 1)
        in_steps = "" if step == 1 else f" in steps of {step}"
        return f"{allowed['min']} to {allowed['max']}{in_steps}"
    return ", ".join(map(str, allowed))
