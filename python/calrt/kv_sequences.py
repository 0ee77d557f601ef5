# SPDX-License-Identifier: Apache-2.0
"""The sequence operations of `calrt.kv.Kv`."""

from __future__ import annotations

from typing import Any, cast

from calrt._arguments import seconds, whole
from calrt._core import Kv as NativeKv
from calrt._core import Lane
from calrt._enums import Status
from calrt.errors import error_for
from calrt.kv_records import Chunk, OpSupport, Run, Shift, TokenIds

__all__ = ["KvSequences"]


class KvSequences:
    """What the cells of lanes hold, and how that changes: a part of `Kv`."""

    __slots__ = ("_native",)

    _native: NativeKv

    def caps(self) -> dict[str, OpSupport]:
        """How each operation is done for this driver and package.

        Keys: seq_rm_tail, seq_rm_middle, seq_cp_full, seq_cp_prefix, seq_cp_range, seq_keep, seq_add,
        seq_div, seq_shift, seq_clear, seq_save, seq_load.
        """
        return {op: OpSupport(*row) for op, row in cast(dict[str, Any], self._native.caps()).items()}

    def seq_rm(self, lane: Lane, p0: int = -1, p1: int = -1) -> None:
        """Forgets positions [p0, p1). A hole is left where cells follow; nothing moves until `apply`.

        Raises
        ------
        UnsupportedError
            Cells would follow, and this model cannot close the hole. Cutting the tail always works.
        """
        self._native.seq_rm(lane, p0, p1)

    def seq_cp(
        self, source: Lane, target: Lane, p0: int = -1, p1: int = -1, timeout: float | None = None
    ) -> None:
        """`target` becomes a copy of positions [p0, p1) of `source`, bit by bit; what it held is gone.

        Parameters
        ----------
        timeout
            Seconds for each data move, None = 600. One that takes longer poisons `target`.

        Raises
        ------
        UnsupportedError
            The range cannot be copied: `caps` says why.
        """
        self._native.seq_cp(source, target, p0, p1, timeout)

    def seq_keep(self, lane: Lane) -> None:
        """Keeps this sequence; others are in lanes of their own and stay, as llama.cpp's split streams do."""
        self._native.seq_keep(lane)

    def seq_add(self, lane: Lane, p0: int, p1: int, d: int) -> None:
        """Positions in [p0, p1) rise by `d`; cells that come below 0 are forgotten. See `apply`.

        Raises
        ------
        InvalidArgumentError
            OUT_OF_RANGE if a position would leave the lane.
        UnsupportedError
            This model cannot turn the K of its cells.
        """
        self._native.seq_add(lane, p0, p1, d)

    def seq_div(self, lane: Lane, p0: int, p1: int, d: int) -> None:
        """Positions in [p0, p1) become floor(position / d), d >= 1. See `apply`; errors as `seq_add`."""
        self._native.seq_div(lane, p0, p1, d)

    def seq_pos_min(self, lane: Lane) -> int:
        """The lowest position, -1 if the lane is empty."""
        return self._native.seq_pos_min(lane)

    def seq_pos_max(self, lane: Lane) -> int:
        """The highest position, -1 if the lane is empty."""
        return self._native.seq_pos_max(lane)

    def clear(self, lane: Lane) -> None:
        """Forgets all cells. No device has to be able to do anything; a poisoned or busy lane refuses."""
        self._native.clear(lane)

    def runs(self, lane: Lane) -> list[Run]:
        """What the cells hold, by cell. A lane that graphs may run on has one run, or none."""
        return [Run(*run) for run in self._native.runs(lane)]

    def shift(self, lane: Lane, keep: int, discard: int = 0, timeout: float | None = None) -> Shift:
        """Context shift: keeps the first `keep` tokens, discards some behind them, moves the rest down.

        Parameters
        ----------
        keep, discard
            Tokens; both are clamped as llama-server does: `keep` to 0..cells - 4, `discard` so that one
            token is left behind `keep`; 0 = half of them.
        timeout
            Seconds for each data move, None = 600.

        Returns
        -------
        Shift
            What was kept and discarded; nothing is discarded where nothing lies behind `keep`.

        Raises
        ------
        KvSequenceError
            A hole or a position that is there twice: the lane is as it was.
        UnsupportedError
            This model cannot move its cells or turn their K: prefill the shortened prompt instead.

        Notes
        -----
        The kept cells attended to what was discarded when they were computed, so what follows is not what a
        fresh prefill of the same tokens gives.
        """
        return Shift(*self._native.shift(lane, keep, discard, timeout))

    def apply(self, lane: Lane, timeout: float | None = None) -> None:
        """Makes the data follow what `seq_rm`, `seq_add` and `seq_div` left pending, by jobs of the device.

        Does nothing on a lane with nothing pending.

        Parameters
        ----------
        timeout
            Seconds for each data move, None = 600.

        Raises
        ------
        KvSequenceError
            No moves lead to a lane without a hole and without a position that is there twice. The message
            says what to do.
        KvError
            KV_POISONED, later, if a move failed after it began to write.
        """
        self._native.apply(lane, timeout)

    def reuse_chunks(
        self, lane: Lane, held: TokenIds, wanted: TokenIds, least: int, timeout: float | None = None
    ) -> int:
        """Makes a lane that holds `held` begin with as much of `wanted` as can be had of its cells.

        Cells of the common beginning stay; chunks of at least `least` equal tokens behind it are moved to
        where `wanted` has them; the rest goes. As llama-server's cache reuse.

        Parameters
        ----------
        held
            Token ids of all cells of the lane, int32.
        wanted
            Token ids of a prompt, int32, at least one.
        least
            Tokens of the smallest chunk worth a move, >= 1.
        timeout
            Seconds for each data move, None = 600.

        Returns
        -------
        int
            Tokens of `wanted` that are in the lane now: at least its last one is left to be computed.

        Raises
        ------
        UnsupportedError
            This model cannot move cells inside a lane.
        InvalidArgumentError
            `held` has not one id for each cell.
        """
        runs = self.runs(lane)
        whole("least", least, 1, 2**32 - 1)
        if timeout is not None:
            seconds("timeout", timeout)
        chunks = [Chunk(*chunk) for chunk in self._native.matching_chunks(held, wanted, least)]
        if len(wanted) == 0:
            raise error_for(Status.SHAPE_MISMATCH, "wanted: empty; a prompt has at least one token")
        length = sum(run.n for run in runs)
        if len(held) != length or lane.pending:
            raise error_for(
                Status.SHAPE_MISMATCH,
                f"held: {len(held)} ids, but lane {lane.index} holds {length} cells"
                + (f"; {lane.pending}" if lane.pending else ""),
            )
        support = self.caps()["seq_shift"]
        if support.how == "unsupported":
            raise error_for(Status.UNSUPPORTED, f"reuse_chunks: cells cannot be moved: {support.why}")
        pairs = enumerate(zip(held, wanted, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(held), len(wanted)))
        for chunk in chunks:
            self.seq_rm(lane, chunk.target, chunk.source)
            self.seq_add(lane, chunk.source, chunk.source + chunk.n, chunk.target - chunk.source)
            at = chunk.target + chunk.n
        at = min(at, len(wanted) - 1)
        self.seq_rm(lane, at)
        self.apply(lane, timeout)
        return at
