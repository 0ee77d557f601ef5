# SPDX-License-Identifier: Apache-2.0
"""Who is next, and on which lane. Pure functions over plain data; the scheduler calls them.

First come, first served, with one exception: a request that insists on a busy lane does not hold up the
ones behind it. A request without a wish gets the lane that has been idle longest (the highest number
among equals, as llama-server does), so that a lane's old content stays useful as long as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Waiting(Struct, frozen=True):
    """A queued request as the policy sees it."""

    request: int
    slot: int
    """The lane it insists on, -1 for any."""


class IdleLane(Struct, frozen=True):
    """A lane that nobody of ours holds."""

    lane: int
    last_used: int
    """Order number of its last use, 0 = never."""


def choose_lane(slot: int, idle: Sequence[IdleLane]) -> int | None:
    """The lane for a request that insists on `slot` (-1: any), or None if it has to wait."""
    if slot >= 0:
        return slot if any(each.lane == slot for each in idle) else None
    if not idle:
        return None
    return min(idle, key=lambda each: (each.last_used, -each.lane)).lane


def choose_next(queue: Iterable[Waiting], idle: Sequence[IdleLane]) -> tuple[int, int] | None:
    """The first request in `queue` that can run now and its lane, or None."""
    if not idle:
        return None
    for waiting in queue:
        lane = choose_lane(waiting.slot, idle)
        if lane is not None:
            return waiting.request, lane
    return None
