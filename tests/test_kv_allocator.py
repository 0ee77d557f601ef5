# SPDX-License-Identifier: Apache-2.0
"""The lane table against a plain Python model of its own: lanes, owners, jobs, and cells as a dict.

500 examples of 50 steps; after each step every invariant of the table and every lane is compared. Plans are
run on a list of cells, so that the data that they move is checked too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import calrt
from calrt.kv import Allocator, LaneRef, Move, Reservation

LANES, CELLS = 3, 12
TTL = 100

positions = st.integers(-1, CELLS + 2)
lane_numbers = st.integers(0, LANES - 1)


@dataclass
class Cell:
    """A token of one position. `coded`: for which its K is turned; `birth`: which token it is."""

    pos: int
    coded: int
    birth: int


@dataclass
class Slot:
    """One lane of the model."""

    state: str = "FREE"
    ref: LaneRef | None = None
    reservation: Reservation | None = None
    expires: int = 0
    reserved: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    job: tuple[str, int, int] | None = None  # kind, job_seq, cells that it writes
    last_seq: int = 0
    failed_scrubs: int = 0

    @property
    def canonical(self) -> bool:
        return all(
            i in self.cells and self.cells[i].pos == self.cells[i].coded == i for i in range(len(self.cells))
        )

    @property
    def length(self) -> int:
        n = 0
        while n in self.cells and self.cells[n].pos == self.cells[n].coded == n:
            n += 1
        return n


def data_of(slot: Slot) -> list[tuple[int, int] | None]:
    """The lane's memory: which token each cell holds, and for which position its K is turned."""
    return [(slot.cells[i].birth, slot.cells[i].coded) if i in slot.cells else None for i in range(CELLS)]


def run_plan(memory: dict[int, list[Any]], plan: list[Move]) -> None:
    for move in plan:
        assert move.n > 0
        source = range(move.cell, move.cell + move.n)
        if move.op in ("range_copy", "lane_copy"):
            taken = [memory[move.lane][i] for i in source]
            memory[move.to_lane][move.to_cell : move.to_cell + move.n] = taken
        else:
            assert move.op == "rotate"
            for i in source:
                birth, coded = memory[move.lane][i]
                memory[move.lane][i] = (birth, coded + move.delta)


def wanted(p0: int, p1: int) -> Callable[[int], bool]:
    low, high = max(p0, 0), 2**31 if p1 < 0 else p1
    return lambda pos: low <= pos < high


class Books(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Allocator(LANES, CELLS)
        self.slots = [Slot() for _ in range(LANES)]
        self.now = 0
        self.seq = 0
        self.births = 0
        self.stale = 0
        self.gone: list[LaneRef] = []
        self.ended: list[tuple[LaneRef, int]] = []

    def refused(
        self, kind: type[calrt.CalrtError], call: Callable[[], object], field: str | None = None
    ) -> None:
        """It raises, naming the field; that nothing changed is what the invariants see."""
        with pytest.raises(kind, match=field):
            call()

    def owned(self, lane: int) -> Slot | None:
        """A slot whose lease is committed and whose lane is in order and idle."""
        slot = self.slots[lane]
        return slot if slot.ref is not None and slot.job is None and slot.state != "POISONED" else None

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def drop(self, slot: Slot) -> None:
        if slot.ref is not None:
            self.gone.append(slot.ref)
        slot.ref = slot.reservation = None
        if slot.job:
            slot.state = "DRAINING"  # its promise stands until the job has ended
            return
        slot.reserved, slot.cells = 0, {}
        if slot.state != "POISONED":
            slot.state = "FREE"

    # ---- admission ----

    def expire_model(self) -> int:
        late = [s for s in self.slots if s.reservation is not None and s.expires <= self.now]
        for slot in late:
            self.drop(slot)
        return len(late)

    @rule(tokens=st.integers(1, CELLS + 1), prefer=st.none() | lane_numbers, only=st.booleans())
    def reserve(self, tokens: int, prefer: int | None, only: bool) -> None:
        only = only and prefer is not None
        call = lambda: self.table.try_reserve(tokens, self.now, prefer, only, TTL)  # noqa: E731
        if tokens > CELLS:
            self.refused(calrt.InvalidArgumentError, call, "tokens")
            return
        self.expire_model()
        free = [i for i, s in enumerate(self.slots) if s.state == "FREE"]
        if only:
            free = [i for i in free if i == prefer]
        if not free:
            self.refused(calrt.KvCapacityError, call)
            return
        got = call()
        lane = got.ref.lane
        assert lane in free
        assert prefer not in free or lane == prefer
        slot = self.slots[lane]
        slot.state, slot.reservation, slot.reserved = "RESERVED", got, tokens
        slot.expires = self.now + TTL

    @rule(lane=lane_numbers)
    def commit(self, lane: int) -> None:
        slot = self.slots[lane]
        if slot.reservation is not None:
            slot.ref, slot.reservation = slot.reservation.commit(), None

    @rule(lane=lane_numbers)
    def give_up(self, lane: int) -> None:
        slot = self.slots[lane]
        if slot.reservation is not None:
            slot.reservation.release()
            slot.reservation.release()
            self.drop(slot)

    @rule(lane=lane_numbers)
    def release(self, lane: int) -> None:
        slot = self.slots[lane]
        if slot.ref is not None:
            self.table.release(slot.ref)
            self.drop(slot)

    @rule(by=st.integers(0, TTL))
    def time_passes(self, by: int) -> None:
        self.now += by
        assert self.table.expire(self.now) == self.expire_model()

    @precondition(lambda self: self.gone)
    @rule(at=st.integers(0, 99), data=st.data())
    def stale_lease(self, at: int, data: st.DataObject) -> None:
        ref = self.gone[at % len(self.gone)]
        call = data.draw(
            st.sampled_from(
                [
                    self.table.release,
                    self.table.clear,
                    self.table.seq_rm,
                    self.table.runs,
                    lambda ref: self.table.begin_job(ref, self.seq + 1, 1),
                ]
            )
        )
        self.refused(calrt.InvalidArgumentError, lambda: call(ref))

    # ---- jobs ----

    @rule(lane=lane_numbers, n=st.integers(1, 5), prefill=st.booleans())
    def begin_job(self, lane: int, n: int, prefill: bool) -> None:
        slot = self.slots[lane]
        if slot.ref is None:
            return
        seq = self.next_seq()
        call = lambda: self.table.begin_job(slot.ref, seq, n, prefill)  # type: ignore[arg-type]  # noqa: E731
        if slot.state == "POISONED":
            self.refused(calrt.KvError, call)
        elif slot.job or not slot.canonical:
            self.refused(calrt.StateError, call)
        elif slot.length + n > slot.reserved:
            self.refused(calrt.InvalidArgumentError, call, "reserved|filled")
        else:
            call()
            slot.job, slot.last_seq = ("graph", seq, n), seq
            slot.state = "PREFILLING" if prefill else "DECODING"

    @rule(lane=lane_numbers, ok=st.booleans(), written=st.booleans())
    def end_job(self, lane: int, ok: bool, written: bool) -> None:
        slot = self.slots[lane]
        if slot.job is None:
            return
        ref = slot.ref or next(r for r in reversed(self.gone) if r.lane == lane)
        _, seq, n = slot.job
        assert not self.table.end_job(ref, seq + 1000, ok, written)
        self.stale += 1
        assert self.table.end_job(ref, seq, ok, written)
        self.ended.append((ref, seq))
        slot.job = None
        if slot.ref is None:
            slot.state, slot.reserved, slot.cells = "POISONED" if not ok and written else "FREE", 0, {}
        elif not ok and written:
            slot.state, slot.cells = "POISONED", {}
        elif ok:
            at = slot.length
            for i in range(at, at + n):
                self.births += 1
                slot.cells[i] = Cell(i, i, self.births)

    @precondition(lambda self: self.ended)
    @rule(at=st.integers(0, 99))
    def end_twice(self, at: int) -> None:
        ref, seq = self.ended[at % len(self.ended)]
        assert not self.table.end_job(ref, seq)
        self.stale += 1

    @rule(lane=lane_numbers, works=st.booleans())
    def scrub(self, lane: int, works: bool) -> None:
        slot = self.slots[lane]
        if slot.state != "POISONED":
            self.refused(calrt.StateError, lambda: self.table.begin_scrub(lane))
            return
        assert lane in self.table.poisoned()
        self.table.begin_scrub(lane)
        self.refused(calrt.StateError, lambda: self.table.begin_scrub(lane))
        state = self.table.end_scrub(lane, works)
        if works:
            slot.state = "FREE" if slot.ref is None else "RESERVED"
            slot.cells, slot.failed_scrubs = {}, 0
            assert state == slot.state
        else:
            slot.failed_scrubs += 1
            if slot.failed_scrubs == 2:
                slot.state = "OFFLINE"
                if slot.ref is not None:
                    self.gone.append(slot.ref)
                slot.ref, slot.reserved = None, 0
            assert state == slot.state

    # ---- sequences ----

    @rule(lane=lane_numbers, p0=positions, p1=positions)
    def seq_rm(self, lane: int, p0: int, p1: int) -> None:
        if (slot := self.owned(lane)) is not None and slot.ref is not None:
            self.table.seq_rm(slot.ref, p0, p1)
            slot.cells = {i: c for i, c in slot.cells.items() if not wanted(p0, p1)(c.pos)}

    @rule(lane=lane_numbers, p0=positions, p1=positions, d=st.integers(-CELLS, CELLS))
    def seq_add(self, lane: int, p0: int, p1: int, d: int) -> None:
        slot = self.owned(lane)
        if slot is None or slot.ref is None:
            return
        ref = slot.ref
        hit = [c for c in slot.cells.values() if wanted(p0, p1)(c.pos)]
        if any(c.pos + d >= CELLS for c in hit):
            self.refused(calrt.InvalidArgumentError, lambda: self.table.seq_add(ref, p0, p1, d), "d=")
            return
        self.table.seq_add(ref, p0, p1, d)
        for cell in hit:
            cell.pos += d
        slot.cells = {i: c for i, c in slot.cells.items() if c.pos >= 0}

    @rule(lane=lane_numbers, p0=positions, p1=positions, d=st.integers(-1, 4))
    def seq_div(self, lane: int, p0: int, p1: int, d: int) -> None:
        slot = self.owned(lane)
        if slot is None or slot.ref is None:
            return
        ref = slot.ref
        if d <= 0:
            self.refused(calrt.InvalidArgumentError, lambda: self.table.seq_div(ref, p0, p1, d), "d=")
            return
        self.table.seq_div(ref, p0, p1, d)
        for cell in slot.cells.values():
            if wanted(p0, p1)(cell.pos):
                cell.pos //= d

    @rule(lane=lane_numbers, keep=st.booleans())
    def clear_or_keep(self, lane: int, keep: bool) -> None:
        slot = self.owned(lane)
        if slot is not None and slot.ref is not None:
            (self.table.seq_keep if keep else self.table.clear)(slot.ref)
            if not keep:
                slot.cells = {}

    @rule(lane=lane_numbers, to=lane_numbers, p0=positions, p1=positions, device=st.booleans())
    def seq_cp(self, lane: int, to: int, p0: int, p1: int, device: bool) -> None:
        a, b = self.owned(lane), self.owned(to)
        if a is None or b is None or a is b or a.ref is None or b.ref is None:
            return
        held = {i: Cell(c.pos, c.coded, c.birth) for i, c in a.cells.items() if wanted(p0, p1)(c.pos)}
        if device:
            seq = self.next_seq()
            memory = {lane: data_of(a), to: data_of(b)}
            plan = self.table.begin_copy(a.ref, b.ref, seq, p0, p1)
            run_plan(memory, plan)
            if plan:
                assert self.table.end_job(b.ref, seq)
                a.last_seq = b.last_seq = seq
            for i, cell in held.items():
                assert memory[to][i] == (cell.birth, cell.coded)
        else:
            self.table.seq_cp(a.ref, b.ref, p0, p1)
        b.cells = held

    @rule(lane=lane_numbers, ok=st.booleans(), written=st.booleans())
    def apply(self, lane: int, ok: bool, written: bool) -> None:
        slot = self.owned(lane)
        if slot is None or slot.ref is None:
            return
        ref, seq = slot.ref, self.next_seq()
        order = [slot.cells[i] for i in sorted(slot.cells)]
        if [c.pos for c in order] != list(range(len(order))):
            self.refused(calrt.KvSequenceError, lambda: self.table.begin_apply(ref, seq))
            return
        memory = {lane: data_of(slot)}
        plan = self.table.begin_apply(ref, seq)
        assert bool(plan) == (not slot.canonical)
        if not plan:
            return
        slot.last_seq = seq
        self.refused(calrt.StateError, lambda: self.table.clear(ref))
        assert self.table.end_job(ref, seq, ok, written)
        if ok:
            run_plan(memory, plan)
            for i, cell in enumerate(order):
                assert memory[lane][i] == (cell.birth, i)
            slot.cells = {i: Cell(i, i, c.birth) for i, c in enumerate(order)}
        elif written:
            slot.state, slot.cells = "POISONED", {}

    @rule(lane=lane_numbers, keep=st.integers(-3, CELLS + 3), discard=st.integers(-3, CELLS + 3))
    def shift(self, lane: int, keep: int, discard: int) -> None:
        slot = self.owned(lane)
        if slot is None or slot.ref is None or not slot.canonical:
            return
        n = len(slot.cells)
        kept, gone = self.table.shift(slot.ref, keep, discard)
        assert 0 <= kept <= CELLS - 4
        assert 0 <= gone <= max(n - kept - 1, 0)
        slot.cells = {i: c for i, c in slot.cells.items() if not kept <= c.pos < kept + gone}
        for cell in slot.cells.values():
            if cell.pos >= kept + gone:
                cell.pos -= gone

    # ---- invariants ----

    @invariant()
    def table_is_whole(self) -> None:
        self.table.check_integrity()

    @invariant()
    def counts_agree(self) -> None:
        assert self.table.free_lanes() == sum(slot.state == "FREE" for slot in self.slots)
        assert self.table.can_allocate(1)["now"] == (self.table.free_lanes() > 0)
        assert self.table.stale_completions == self.stale

    @invariant()
    def lanes_agree(self) -> None:
        for lane, slot in enumerate(self.slots):
            seen = self.table.snapshot(lane)
            assert (seen["state"], seen["reserved"]) == (slot.state, slot.reserved), seen
            assert seen["job_seq"] == (slot.job[1] if slot.job else 0)
            assert seen["failed_scrubs"] == slot.failed_scrubs
            if slot.ref is None or slot.state == "POISONED":
                continue
            held: dict[int, tuple[int, int]] = {}
            for run in self.table.runs(slot.ref):
                for i in range(run.n):
                    held[run.cell + i] = (run.pos if run.same else run.pos + i, run.coded + i)
            assert held == {i: (cell.pos, cell.coded) for i, cell in slot.cells.items()}
            places = [cell.pos for cell in slot.cells.values()]
            assert self.table.seq_pos_min(slot.ref) == min(places, default=-1)
            assert self.table.seq_pos_max(slot.ref) == max(places, default=-1)
            assert (seen["canonical"], seen["length"]) == (slot.canonical, slot.length)


class Llama(Books):
    """The same, where any negative position is as llama.cpp takes it."""

    @initialize()
    def another_table(self) -> None:
        self.table = Allocator(LANES, CELLS, compat="llama")

    @rule(lane=lane_numbers, p0=st.integers(-2000, -2), p1=st.integers(-2000, -2))
    def any_negative(self, lane: int, p0: int, p1: int) -> None:
        self.seq_rm(lane, p0, p1)


thorough = settings(
    max_examples=500, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestBooks = Books.TestCase
TestBooks.settings = thorough
TestLlama = Llama.TestCase
TestLlama.settings = settings(thorough, max_examples=100)
