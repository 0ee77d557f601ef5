# SPDX-License-Identifier: Apache-2.0
"""KV lanes: `model.kv` is a `Kv`, what it reserves is a `Lane`; `Allocator` keeps the books alone.

A lane holds one sequence of at most `cells` tokens. docs/kv.md explains lanes from the beginning.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, cast, overload

from calrt._arguments import text
from calrt._core import CancelToken, Lane, LaneRef, Reservation
from calrt._core import Kv as NativeKv
from calrt.kv_allocator import Allocator
from calrt.kv_records import (
    Capacity,
    Chunk,
    KvStats,
    LaneSnapshot,
    Move,
    OpSupport,
    PrefixEvent,
    PrefixMatch,
    Reuse,
    Run,
    Shift,
    StateInfo,
    TokenIds,
)
from calrt.kv_sequences import KvSequences

__all__ = [
    "Allocator",
    "CancelToken",
    "Capacity",
    "Chunk",
    "Kv",
    "KvStats",
    "Lane",
    "LaneRef",
    "LaneSnapshot",
    "Move",
    "OpSupport",
    "PrefixEvent",
    "PrefixMatch",
    "Reservation",
    "Reuse",
    "Run",
    "Shift",
    "StateInfo",
]


def _path(name: str, value: Any) -> str:
    """A text or a path object as text."""
    return text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


class Kv(KvSequences):
    """The KV lanes of a model. Thread-safe.

    All methods leave the GIL before they take a lock. An operation is done whole, or raises and the lane is
    as it was; only a data move that failed after it had begun to write leaves its lane poisoned. Common
    errors: `InvalidArgumentError` naming the argument, also for a lane that was released or is another
    model's; `StateError` while a job runs on the lane, or on a closed model or device.

    Positions are half-open ranges [p0, p1), -1 is the beginning or the end. What the operations mean is
    llama.cpp's with one stream per sequence; `caps` says how each is done here.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, native: NativeKv) -> None:
        self._native = native

    @property
    def native(self) -> NativeKv:
        """The object of the native module."""
        return self._native

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self._native.lanes

    @property
    def cells(self) -> int:
        """Cells (token positions) per lane."""
        return self._native.cells

    # ---- admission ----------------------------------------------------------------------------------

    def can_allocate(self, tokens: int) -> Capacity:
        """Advice, true when asked and no promise; takes no lock.

        Parameters
        ----------
        tokens
            Cells needed: the prompt and everything that may be generated.

        Raises
        ------
        InvalidArgumentError
            OUT_OF_RANGE with the numbers if `tokens` can never fit a lane.
        """
        return cast(Capacity, self._native.can_allocate(tokens))

    def free_lanes(self) -> int:
        """Lanes to be had now: those nobody owns, and parked ones that nobody reads."""
        return self._native.free_lanes()

    def reserve(
        self,
        tokens: int,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        prompt: TokenIds | None = None,
        salt: str = "",
    ) -> Lane:
        """A lane with room for `tokens` cells; waits in order of arrival, without spinning.

        Parameters
        ----------
        tokens
            Cells needed, 1 to `cells`.
        timeout
            Seconds to wait at most, None = 60.
        cancel
            Ends the wait from another thread.
        prompt, salt
            As `try_reserve` has them. What is found then is moved after the wait, for up to 600 s more.

        Returns
        -------
        Lane
            The caller's until `release`, the end of `with`, or garbage collection.

        Raises
        ------
        KvTimeoutError
            No lane came free in time.
        CancelledJobError
            `cancel` ended the wait.
        InvalidArgumentError
            OUT_OF_RANGE at once if `tokens` can never fit; those behind are not held up.
        CapacityError
            QUEUE_FULL at once if 64 already wait.
        StateError
            The model or device was closed, also during the wait.
        DeviceLostError
            The device was lost, also during the wait.

        Notes
        -----
        The GIL is free meanwhile and Ctrl-C is seen within 0.1 s.
        """
        return self._native.reserve(tokens, timeout, cancel, prompt, salt)

    async def areserve(
        self,
        tokens: int,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        prompt: TokenIds | None = None,
        salt: str = "",
    ) -> Lane:
        """`reserve` for asyncio: waits in the running loop, in the same queue.

        There is exactly one outcome. Cancelling the await gives up the place, or gives the lane back if it
        was granted already. Parameters and errors are those of `reserve`; with a prompt, data moves run on a
        thread of the loop's executor.
        """
        from calrt._await import wait_for_lane  # asyncio costs its import

        return await wait_for_lane(self._native.enqueue(tokens, timeout, cancel, prompt, salt))

    def try_reserve(
        self,
        tokens: int,
        prefer: int | None = None,
        only: bool = False,
        prompt: TokenIds | None = None,
        salt: str = "",
    ) -> Lane:
        """A lane with room for `tokens` cells, at once.

        Parameters
        ----------
        tokens
            Cells needed, 1 to `cells`.
        prefer, only
            Number of a lane that is tried first, alone with `only`.
        prompt
            Token ids of the vocabulary, int32. If a parked lane or a hosted prefix begins like it, the lane
            comes with those cells: its `length` says how many, always fewer than the prompt has. What cannot
            be copied or restored is a miss, not an error. Data moves take up to 600 s.
        salt
            Only prefixes parked with the same salt are found.

        Raises
        ------
        KvCapacityError
            No lane, or not that one, is free.
        InvalidArgumentError
            As `reserve`.
        """
        return self._native.try_reserve(tokens, prefer, only, prompt, salt)

    # ---- states -------------------------------------------------------------------------------------

    def save(
        self,
        lane: Lane,
        path: str | os.PathLike[str],
        tokens: TokenIds | None = None,
        timeout: float | None = None,
    ) -> int:
        """Writes the lane's cells to a file; pending moves are applied first. The lane stays as it is.

        Parameters
        ----------
        path
            The file. It appears under its name only once it is whole; what was there before is replaced.
        tokens
            Token ids to keep with the cells, one for each, int32; None = none.
        timeout
            Seconds for each data move, None = 600.

        Returns
        -------
        int
            Bytes of the file.

        Raises
        ------
        UnsupportedError
            Cells of this model cannot be read.
        InvalidArgumentError
            Naming the path, if its folder is not there or the disk is full for example; no file is left.
        """
        return self._native.save(lane, _path("path", path), tokens, timeout)

    def load(self, lane: Lane, path: str | os.PathLike[str], timeout: float | None = None) -> StateInfo:
        """Replaces what a lane holds by a file that `save` wrote, of the same package and KV layout.

        The whole file is read and checked before the first cell is written: one that is damaged, cut, or of
        another model leaves the lane bit by bit as it is.

        Parameters
        ----------
        timeout
            Seconds for each data move, None = 600.

        Returns
        -------
        StateInfo
            Its cells, token ids if any were saved, and bytes.

        Raises
        ------
        InvalidArgumentError
            There is no such file, or it cannot be read.
        KvSequenceError
            KV_INVALID_SEQUENCE naming what is wrong with the file.
        UnsupportedError
            Cells of this model cannot be written.
        """
        return StateInfo(*self._native.load(lane, _path("path", path), timeout))

    @overload
    def state(
        self, lane: Lane, tokens: TokenIds | None = ..., out: None = ..., timeout: float | None = ...
    ) -> bytes: ...
    @overload
    def state(
        self, lane: Lane, tokens: TokenIds | None = ..., *, out: Any, timeout: float | None = ...
    ) -> memoryview: ...
    def state(
        self, lane: Lane, tokens: TokenIds | None = None, out: Any = None, timeout: float | None = None
    ) -> bytes | memoryview:
        """As `save`, into memory: new bytes, or the beginning of `out`, of which a view is returned.

        Parameters
        ----------
        out
            Contiguous memory that can be written, e.g. a bytearray or an array of uint8. Must not be changed
            during the call; its content is undefined if this raises.

        Raises
        ------
        InvalidArgumentError
            OUT_OF_RANGE with the size due, if `out` is too small.
        """
        made = self._native.state(lane, tokens, out, timeout)
        if isinstance(made, bytes):
            return made
        return memoryview(out).cast("B")[:made]

    def restore(self, lane: Lane, data: Any, timeout: float | None = None) -> StateInfo:
        """As `load`, from contiguous bytes in memory, which are read where they lie."""
        return StateInfo(*self._native.restore(lane, data, timeout))

    # ---- prefixes -----------------------------------------------------------------------------------

    def enable_prefixes(self, every: int | None = None, host_bytes: int = 0) -> None:
        """Says how prefixes are kept, before the first `park`; otherwise the defaults hold.

        Parameters
        ----------
        every
            Tokens between two keys: nothing shorter is parked or found. None = the smallest prefill chunk.
        host_bytes
            Bytes on the host for the cells of parked lanes that had to make room for a reservation with a
            prompt; 0 = none are kept.

        Raises
        ------
        StateError
            It was said before, or a lane was parked already.
        UnsupportedError
            `host_bytes` on a device whose cells cannot be read and written.
        """
        self._native.enable_prefixes(every, host_bytes)

    def park(self, lane: Lane, tokens: TokenIds, priority: int = 0, salt: str = "") -> None:
        """Leaves a lane's cells for prompts that begin alike; the lease ends, the lane counts as free.

        Parameters
        ----------
        tokens
            Token ids of all its cells, int32; at least as many as there are between two keys.
        priority
            The higher, the longer it stays when lanes are short; then the one used last.
        salt
            Only reservations with the same salt find it: keeps tenants apart.

        Raises
        ------
        StateError
            Data moves are pending, or a job runs. The lane is still the caller's after any error.
        """
        self._native.park(lane, tokens, priority, salt)

    def clear_prefixes(self) -> int:
        """Forgets all prefixes that nobody reads, those on the host too; how many."""
        return self._native.clear_prefixes()

    def prefix_counters(self) -> dict[str, int]:
        """What came of prefixes since the model was loaded.

        hits, misses, hit_tokens (of reservations with a prompt); stored, hosted (entries that came);
        removed, cleared, evicted_lanes, evicted_blobs (that went); host_refused (no room for it),
        host_aborted (its cells could not be read); spilled, spill_failures, restored, restore_failures (data
        moves, so what was refused is no failure); events_lost; hosted_bytes.
        """
        return self._native.prefix_counters()

    def prefix_events(self) -> list[PrefixEvent]:
        """The events since the last call, oldest first; 256 are kept."""
        return [PrefixEvent(*event) for event in self._native.prefix_events()]

    # ---- what is, and recovery ----------------------------------------------------------------------

    def snapshot(self, lane: int | Lane) -> LaneSnapshot:
        """One lane, by number, or as long as it is the caller's."""
        return cast(LaneSnapshot, self._native.snapshot(lane))

    def stats(self) -> KvStats:
        """Counts; each is true by itself, not all at the same moment."""
        native = self._native
        states = Counter(str(native.snapshot(lane)["state"]) for lane in range(native.lanes))
        return {
            "lanes": native.lanes,
            "cells": native.cells,
            "free": native.free_lanes(),
            "waiting": native.waiters(),
            "states": dict(states),
            "stale_completions": native.stale_completions(),
            "prefixes": native.prefix_counters(),
        }

    def scrub(self, job_seq: int = 0) -> list[int]:
        """Tries poisoned lanes, and empties those that work: the lane keeps what is written to it, or a known
        token gives the logits that it gave before.

        A lane that somebody holds stays theirs, with length 0; one that fails stays poisoned, and is offline
        after the second time. Each job of the device may take 2 s.

        Parameters
        ----------
        job_seq
            Only lanes that this job was the last to write; 0 = all.

        Returns
        -------
        list of int
            Numbers of the lanes that work again.
        """
        return self._native.scrub(job_seq)

    def check_integrity(self) -> None:
        """Checks every invariant of the table; `CalrtError` names the first that is broken."""
        self._native.check_integrity()

    def __repr__(self) -> str:
        return f"<calrt.Kv: {self.free_lanes()} of {self.lanes} lanes free, {self.cells} cells each>"
