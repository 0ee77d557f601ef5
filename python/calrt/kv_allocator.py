# SPDX-License-Identifier: Apache-2.0
"""`calrt.kv.Allocator`: the KV bookkeeping alone, for tests and other runtimes."""

from __future__ import annotations

from typing import Any, Literal, cast

from calrt._core import LaneRef, LaneTable, Reservation
from calrt.kv_records import Capacity, LaneSnapshot, Move, PrefixEvent, PrefixMatch, Run, Shift, TokenIds

__all__ = ["Allocator"]

TTL_NS = 5_000_000_000
"""How long a reservation holds its lane unless it says otherwise."""


class Allocator:
    """Who owns which lane, what its cells hold, which job may write it. No device and no clock: time is an
    argument. Thread-safe.

    A call that raises changes nothing. Common errors: `InvalidArgumentError` naming the argument, also for a
    lease that is over or another allocator's; `KvError` KV_POISONED; `StateError` while a job is in flight.

    Parameters
    ----------
    lanes, cells
        How many lanes there are (1 to 65,536), and cells in each (1 to 2^31 - 1).
    compat
        "strict": -1 is the beginning or the end, smaller positions are refused. "llama": any negative is.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, lanes: int, cells: int, compat: Literal["strict", "llama"] = "strict") -> None:
        self._native = LaneTable(lanes, cells, compat)

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
        """Advice; OUT_OF_RANGE if `tokens` cells can never fit a lane."""
        return cast(Capacity, self._native.can_allocate(tokens))

    def free_lanes(self) -> int:
        """Lanes to be had: free ones, and parked ones that nobody reads."""
        return self._native.free_lanes()

    def try_reserve(
        self,
        tokens: int,
        now_ns: int,
        prefer: int | None = None,
        only: bool = False,
        ttl_ns: int = TTL_NS,
        prompt: TokenIds | None = None,
        salt: str = "",
    ) -> Reservation:
        """Promises a lane with room for `tokens` cells until `now_ns` + `ttl_ns`, or its `commit()`.

        Parameters
        ----------
        tokens
            Cells needed, 1 to `cells`.
        now_ns
            The time in ns, of any clock that never goes back.
        prefer, only
            Number of a lane that is tried first, alone with `only`.
        ttl_ns
            Time to live in ns.
        prompt, salt
            Token ids (int32) whose beginning may be reused, among prefixes of the same salt.

        Raises
        ------
        KvCapacityError
            No lane, or not that one, is to be had.
        InvalidArgumentError
            OUT_OF_RANGE if it can never fit.
        """
        return self._native.try_reserve(tokens, now_ns, prefer, only, ttl_ns, prompt, salt)

    def expire(self, now_ns: int) -> int:
        """Frees the reservations whose time has passed; how many."""
        return self._native.expire(now_ns)

    def release(self, lane: LaneRef) -> None:
        """Gives a lane back: free, or draining until its job has ended."""
        self._native.release(lane)

    # ---- jobs ---------------------------------------------------------------------------------------

    def begin_job(self, lane: LaneRef, job_seq: int, n: int, prefill: bool = False) -> None:
        """A graph job writes the next `n` cells. `job_seq` must rise on each lane.

        Raises `InvalidArgumentError` past the cells that were reserved; `StateError` if a job is in flight or
        a data move is pending: the message says what to do.
        """
        self._native.begin_job(lane, job_seq, n, prefill)

    def end_job(self, lane: LaneRef, job_seq: int, ok: bool = True, written: bool = True) -> bool:
        """The job or the plan of moves ended: what it made of the lane counts if `ok`; the lane is poisoned
        if not and something was `written`, else it is as before.

        False if it is not the lane's job: dropped and counted.
        """
        return self._native.end_job(lane, job_seq, ok, written)

    def begin_apply(self, lane: LaneRef, job_seq: int) -> list[Move]:
        """The moves that sequence operations left pending; none: nothing is to be ended.

        Raises `KvSequenceError` naming a hole, or a position that is there twice.
        """
        return _plan(self._native.begin_apply(lane, job_seq))

    def begin_copy(
        self, source: LaneRef, target: LaneRef, job_seq: int, p0: int = -1, p1: int = -1
    ) -> list[Move]:
        """The moves that make `target` a copy of positions [p0, p1) of `source`. End it with `target`."""
        return _plan(self._native.begin_copy(source, target, job_seq, p0, p1))

    def begin_write(self, lane: LaneRef, job_seq: int, n: int) -> list[Move]:
        """The caller writes cells [0, n), which are all that the lane holds then."""
        return _plan(self._native.begin_write(lane, job_seq, n))

    def begin_read(self, lane: LaneRef, job_seq: int) -> list[Move]:
        """The caller reads the lane's cells, which stay as they are meanwhile."""
        return _plan(self._native.begin_read(lane, job_seq))

    def begin_reuse(self, lane: LaneRef, job_seq: int) -> list[Move]:
        """The copy that a reservation's `reuse` of kind "copy" announced."""
        return _plan(self._native.begin_reuse(lane, job_seq))

    def begin_spill(self, lane: LaneRef, job_seq: int) -> list[Move]:
        """Reads the cells of the prefix that this lease `evicted`, before they are written."""
        return _plan(self._native.begin_spill(lane, job_seq))

    # ---- poison -------------------------------------------------------------------------------------

    def poisoned(self, job_seq: int = 0, unowned: bool = False) -> list[int]:
        """Poisoned lanes whose device writes have ended: all, or those that `job_seq` was the last to write;
        with `unowned` those that nobody holds.
        """
        return self._native.poisoned(job_seq, unowned)

    def begin_scrub(self, lane: int) -> None:
        """The caller tries whether a poisoned lane works; `StateError` while another does."""
        self._native.begin_scrub(lane)

    def end_scrub(self, lane: int, works: bool) -> str:
        """If it works it is empty, and FREE or its owner's again; else POISONED still, OFFLINE after the
        second time. The new state.
        """
        return self._native.end_scrub(lane, works)

    def take_offline(self) -> None:
        """The device is lost: every lane is offline, every lease and later completion is stale."""
        self._native.take_offline()

    # ---- sequences ----------------------------------------------------------------------------------

    def seq_rm(self, lane: LaneRef | None, p0: int = -1, p1: int = -1) -> None:
        """Forgets positions [p0, p1), of every owned lane if `lane` is None (llama.cpp's -1), or of none."""
        self._native.seq_rm(lane, p0, p1)

    def seq_cp(self, source: LaneRef, target: LaneRef, p0: int = -1, p1: int = -1) -> None:
        """`target` holds positions [p0, p1) of `source`, and nothing else."""
        self._native.seq_cp(source, target, p0, p1)

    def seq_keep(self, lane: LaneRef) -> None:
        """Keeps this sequence; others are in lanes of their own and stay."""
        self._native.seq_keep(lane)

    def seq_add(self, lane: LaneRef, p0: int, p1: int, d: int) -> None:
        """Positions in [p0, p1) rise by `d`; cells below 0 are forgotten. OUT_OF_RANGE past the last cell."""
        self._native.seq_add(lane, p0, p1, d)

    def seq_div(self, lane: LaneRef, p0: int, p1: int, d: int) -> None:
        """Positions in [p0, p1) become floor(position / d), d >= 1."""
        self._native.seq_div(lane, p0, p1, d)

    def seq_pos_min(self, lane: LaneRef) -> int:
        """The lowest position, -1 if empty."""
        return self._native.seq_pos_min(lane)

    def seq_pos_max(self, lane: LaneRef) -> int:
        """The highest position, -1 if empty."""
        return self._native.seq_pos_max(lane)

    def clear(self, lane: LaneRef) -> None:
        """Forgets all cells."""
        self._native.clear(lane)

    def shift(self, lane: LaneRef, keep: int, discard: int = 0) -> Shift:
        """Context shift as `Kv.shift`; its moves are pending until `begin_apply`."""
        return Shift(*self._native.shift(lane, keep, discard))

    def truncate(self, lane: LaneRef, length: int) -> None:
        """Forgets cells [length, ...)."""
        self._native.truncate(lane, length)

    def runs(self, lane: LaneRef) -> list[Run]:
        """What the cells hold, by cell."""
        return [Run(*run) for run in self._native.runs(lane)]

    # ---- prefixes -----------------------------------------------------------------------------------

    def enable_prefixes(self, every: int, host_bytes: int = 0, host_blobs: int = 4096) -> None:
        """Once, before anything is parked: a key every so many tokens; bytes and number of hosted blobs."""
        self._native.enable_prefixes(every, host_bytes, host_blobs)

    def park(self, lane: LaneRef, tokens: TokenIds, priority: int = 0, salt: str = "") -> None:
        """The lane keeps its cells, whose token ids are `tokens`, for others; the lease ends."""
        self._native.park(lane, tokens, priority, salt)

    def drop_reuse(self, lane: LaneRef) -> None:
        """What of a "copy" or "hosted" reuse was not used yet is let go."""
        self._native.drop_reuse(lane)

    def unpark(self, lane: int) -> None:
        """A parked lane is free; `StateError` if someone reads it."""
        self._native.unpark(lane)

    def clear_prefixes(self) -> int:
        """Forgets all prefixes that nobody reads, hosted ones too; how many."""
        return self._native.clear_prefixes()

    def find_prefix(self, tokens: TokenIds, salt: str = "") -> PrefixMatch | None:
        """Who holds most of the beginning of `tokens`. Counts nothing."""
        match = self._native.find_prefix(tokens, salt)
        return None if match is None else PrefixMatch(*match)

    def begin_hosted(
        self, tokens: TokenIds, nbytes: int, priority: int = 0, salt: str = ""
    ) -> tuple[int, list[int]]:
        """Room on the host for `nbytes` of a prefix: the blob's number, and the blobs that made room."""
        return self._native.begin_hosted(tokens, nbytes, priority, salt)

    def end_hosted(self, blob: int, ok: bool = True) -> None:
        """Its bytes are there, or never will be."""
        self._native.end_hosted(blob, ok)

    def drop_hosted(self, blob: int) -> None:
        """Forgets a blob that nobody reads."""
        self._native.drop_hosted(blob)

    def prefix_counters(self) -> dict[str, int]:
        """As `Kv.prefix_counters`, without data moves."""
        return self._native.prefix_counters()

    def prefix_events(self) -> list[PrefixEvent]:
        """The events since the last call, oldest first; 256 are kept."""
        return [PrefixEvent(*event) for event in self._native.prefix_events()]

    # ---- what is ------------------------------------------------------------------------------------

    def snapshot(self, lane: int | LaneRef) -> LaneSnapshot:
        """One lane by number, or by a lease that is still good."""
        return cast(LaneSnapshot, self._native.snapshot(lane))

    @property
    def stale_completions(self) -> int:
        """Ends of jobs that were not the lane's, and were dropped."""
        return self._native.stale_completions()

    def check_integrity(self) -> None:
        """Checks every invariant; `CalrtError` names the first that is broken."""
        self._native.check_integrity()

    def __repr__(self) -> str:
        return (
            f"<calrt.kv.Allocator: {self.free_lanes()} of {self.lanes} lanes free, {self.cells} cells each>"
        )


def _plan(moves: list[tuple[Any, ...]]) -> list[Move]:
    return [Move(*move) for move in moves]
