# SPDX-License-Identifier: Apache-2.0
"""What the KV tells: plain records of `calrt.kv`, all immutable or owned by the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

__all__ = [
    "Capacity",
    "Chunk",
    "KvStats",
    "LaneSnapshot",
    "Move",
    "OpSupport",
    "PrefixEvent",
    "PrefixMatch",
    "Reuse",
    "Run",
    "Shift",
    "StateInfo",
    "TokenIds",
]

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.int32]
"""Token ids as they are given: a list, or the quicker array of int32 [n]."""


class Capacity(TypedDict):
    """What there is room for. `free`: lanes to be had, parked ones that would be evicted among them."""

    now: bool
    free: int
    lanes: int
    cells: int


class LaneSnapshot(TypedDict):
    """One lane at one moment.

    `state`: FREE, RESERVED, PREFILLING, DECODING, DRAINING, PARKED, POISONED or OFFLINE. `length`: cells that
    hold a token, from the beginning; `reserved`: cells promised. `job_seq`: of the job in flight, 0 = none.
    `canonical`: no data move is pending. `pins`: readers of a parked lane. `failed_scrubs`: two are the end.
    """

    state: str
    length: int
    reserved: int
    job_seq: int
    canonical: bool
    pins: int
    failed_scrubs: int


class KvStats(TypedDict):
    """Counts of a model's KV. `states`: lanes by state; `waiting`: callers that wait for a lane;
    `stale_completions`: ends of jobs that came for a lease that was over, and were dropped; `prefixes`: see
    `Kv.prefix_counters`.
    """

    lanes: int
    cells: int
    free: int
    waiting: int
    states: dict[str, int]
    stale_completions: int
    prefixes: dict[str, int]


class OpSupport(NamedTuple):
    """How an operation is done, and with what; or what is missing.

    `how`: "native" by the device or in the books alone, "host" by reading cells, changing them on the host
    and writing them back, "recompute": not at all, but a new prefill gives the same, or "unsupported".
    """

    how: Literal["native", "host", "recompute", "unsupported"]
    why: str


class Shift(NamedTuple):
    """A context shift as it was done, in tokens: `keep` stayed, `discard` behind them went."""

    keep: int
    discard: int


class StateInfo(NamedTuple):
    """What a state held: its cells, the token ids saved with it (one for each cell, or none), its bytes."""

    cells: int
    tokens: list[int]
    bytes: int


class Run(NamedTuple):
    """Cells [cell, cell + n). `pos`: position of the first, rising by one in the run, or of all if `same`.
    `coded`: the position that the first cell's K is turned for; it rises by one.
    """

    cell: int
    n: int
    pos: int
    coded: int
    same: bool


class Move(NamedTuple):
    """One step of a plan, to be ended before the next begins. `op`: clear, lane_copy, range_copy, rotate,
    read or write; copies go from cells [cell, cell + n) of `lane` to `to_cell` of `to_lane`, and the ranges
    may overlap; rotate turns K on by `delta` positions.
    """

    op: str
    lane: int
    to_lane: int
    cell: int
    to_cell: int
    n: int
    delta: int


class Chunk(NamedTuple):
    """`n` equal tokens: at position `source` of what is held, at `target` of what is wanted."""

    source: int
    target: int
    n: int


class Reuse(NamedTuple):
    """What of a prompt a reserved lane has or can get: `tokens` cells.

    `kind`: "none"; "in_place": they are there; "copy": of the parked lane `id`, by `begin_reuse`; "hosted":
    the first of blob `id`, to be written by `begin_write`.
    """

    kind: Literal["none", "in_place", "copy", "hosted"]
    tokens: int
    id: int


class PrefixMatch(NamedTuple):
    """Who holds the beginning of a prompt: "lane" number `id` or "host" blob `id`. `tokens` are equal, of
    `held` in all; `pins`: readers.
    """

    place: Literal["lane", "host"]
    id: int
    tokens: int
    held: int
    pins: int


class PrefixEvent(NamedTuple):
    """A prefix came or went. `number` rises by one; a gap is events that nobody fetched in time.

    `kind`: stored, removed, evicted, hosted or cleared; `place` and `id`: see `PrefixMatch`; `tokens`: its
    length, of cleared: how many went; `key`: SHA-256 of the prefix, a chain over its tokens.
    """

    number: int
    kind: str
    place: Literal["lane", "host"]
    id: int
    tokens: int
    key: bytes
