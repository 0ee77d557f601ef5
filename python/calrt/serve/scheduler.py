# SPDX-License-Identifier: Apache-2.0
"""The scheduler: a pure step over one transition table.

A request lives in one of six states:

    QUEUED ──Granted──> RESERVED ──Started──> PREFILL ──Token──> DECODE ──Ended──> ENDED
       │                    │                    │                  │                ^
       │                    └─── owner gone (cancel, deadline, shutdown) ──┐         │
       └───────────── owner gone ──────────────────────────────> ENDED     v         │
                                                                        DRAINING ──Ended

DRAINING means: the owner has had its terminal event, but a job of the request may still be on the device,
so the lane is not free yet. ENDED requests are forgotten; whatever still arrives for them is counted and
dropped. Everything that may happen is a row of TRANSITIONS; an event without a row changes nothing and
comes back as an `Illegal` action.

The promise kept here: every accepted request gets exactly one `Close`. It holds because CLOSE stands on
exactly those rows that leave the four states with an owner, and on no other row (a test reads the table).

There is no clock, no input or output, no thread and no randomness in this file. `step` gets the events
and the time, and answers with actions and with the latest time at which it wants to be called again.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from .messages import (
    Accepted,
    Action,
    Arrived,
    Cancelled,
    ChunkDone,
    Close,
    Denied,
    Emit,
    Ended,
    Event,
    Expired,
    Finish,
    Granted,
    Illegal,
    Launch,
    Plan,
    Refuse,
    Reserve,
    Started,
    Stop,
    Token,
    Unloaded,
)
from .policy import IdleLane, Waiting, choose_next


class State(Enum):
    """Where a request is in its life."""

    QUEUED = "queued"
    RESERVED = "reserved"
    PREFILL = "prefill"
    DECODE = "decode"
    DRAINING = "draining"
    ENDED = "ended"


class Effect(Enum):
    """What a transition does besides changing the state."""

    LAUNCH = "hand the request to the runner"
    BLOCK = "leave the lane alone for a while"
    EMIT = "tell the owner"
    STOP = "ask the runner to let go"
    FREE = "the lane is idle again"
    CLOSE = "the owner's terminal event"
    DROP = "count it and forget it"


Row: TypeAlias = "tuple[State, tuple[Effect, ...]]"

_LEAVE: Row = (State.DRAINING, (Effect.STOP, Effect.CLOSE))
_LATE: Row = (State.DRAINING, (Effect.DROP,))
_OVER: Row = (State.ENDED, (Effect.FREE, Effect.CLOSE))
_GIVE_UP: Row = (State.ENDED, (Effect.CLOSE,))

TRANSITIONS: dict[tuple[State, type], Row] = {
    (State.QUEUED, Granted): (State.RESERVED, (Effect.LAUNCH,)),
    (State.QUEUED, Denied): (State.QUEUED, (Effect.BLOCK,)),
    (State.QUEUED, Ended): _GIVE_UP,
    (State.QUEUED, Cancelled): _GIVE_UP,
    (State.QUEUED, Expired): _GIVE_UP,
    (State.QUEUED, Unloaded): _GIVE_UP,
    (State.RESERVED, Started): (State.PREFILL, (Effect.EMIT,)),
    (State.RESERVED, Ended): _OVER,
    (State.RESERVED, Cancelled): _LEAVE,
    (State.RESERVED, Expired): _LEAVE,
    (State.RESERVED, Unloaded): _LEAVE,
    (State.PREFILL, ChunkDone): (State.PREFILL, (Effect.EMIT,)),
    (State.PREFILL, Token): (State.DECODE, (Effect.EMIT,)),
    (State.PREFILL, Ended): _OVER,
    (State.PREFILL, Cancelled): _LEAVE,
    (State.PREFILL, Expired): _LEAVE,
    (State.PREFILL, Unloaded): _LEAVE,
    (State.DECODE, Token): (State.DECODE, (Effect.EMIT,)),
    (State.DECODE, Ended): _OVER,
    (State.DECODE, Cancelled): _LEAVE,
    (State.DECODE, Expired): _LEAVE,
    (State.DECODE, Unloaded): _LEAVE,
    (State.DRAINING, Started): _LATE,
    (State.DRAINING, ChunkDone): _LATE,
    (State.DRAINING, Token): _LATE,
    (State.DRAINING, Cancelled): _LATE,
    (State.DRAINING, Expired): _LATE,
    (State.DRAINING, Unloaded): _LATE,
    (State.DRAINING, Ended): (State.ENDED, (Effect.FREE,)),
}

_OWNED = (State.QUEUED, State.RESERVED, State.PREFILL, State.DECODE)


class SchedulerStatistics(Struct, frozen=True):
    """A snapshot of the counters. `accepted == closed + (queued + running)` at all times."""

    accepted: int
    refused: int
    closed: int
    late: int
    illegal: int
    queued: int
    running: int
    draining: int


class _Entry:
    __slots__ = ("accepted", "lane", "state")

    def __init__(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self.state = State.QUEUED
        self.lane = -1


class Scheduler:
    """Requests and lanes. Lane k is server slot k. Not thread-safe: one owner calls `step`."""

    def __init__(self, lanes: int, queue_limit: int) -> None:
        """`lanes` >= 1 sequences run at once; at most `queue_limit` more wait."""
        if lanes < 1 or queue_limit < 0:
            raise ValueError(f"lanes must be >= 1 and queue_limit >= 0, got {lanes} and {queue_limit}")
        self._queue_limit = queue_limit
        self._requests: dict[int, _Entry] = {}
        self._queue: dict[int, Waiting] = {}
        self._holder: list[int | None] = [None] * lanes
        self._last_used = [0] * lanes
        self._blocked_until = [0] * lanes
        self._uses = 0
        self._next_deadline: int | None = None
        self._accepted = self._refused = self._closed = self._late = self._illegal = 0

    # ---- the step --------------------------------------------------------------------------------

    def step(self, events: list[Event], now: int) -> Plan:
        """Take the events, look at the time, give lanes to those who wait."""
        actions: list[Action] = []
        for event in events:
            self._take(event, actions)
        self._expire(now, actions)
        self._admit(now, actions)
        return Plan(tuple(actions), self._wake_at(now))

    def _take(self, event: Event, actions: list[Action]) -> None:
        if isinstance(event, Arrived):
            self._arrive(event.accepted, actions)
            return
        entry = self._requests.get(event.request)
        if entry is None:
            self._late += 1
            return
        row = TRANSITIONS.get((entry.state, type(event)))
        if row is None:
            self._illegal += 1
            actions.append(Illegal(event.request, entry.state.value, type(event).__name__))
            return
        state, effects = row
        if entry.state is State.QUEUED and state is not State.QUEUED:
            del self._queue[event.request]
        entry.state = state
        for effect in effects:
            self._apply(effect, entry, event, actions)
        if state is State.ENDED:
            del self._requests[event.request]

    def _apply(self, effect: Effect, entry: _Entry, event: Event, actions: list[Action]) -> None:
        request = entry.accepted.request
        if effect is Effect.EMIT:
            if isinstance(event, Started | ChunkDone | Token):
                actions.append(Emit(request, event))
        elif effect is Effect.CLOSE:
            self._closed += 1
            actions.append(_close(request, event))
        elif effect is Effect.STOP:
            actions.append(Stop(request))
        elif effect is Effect.FREE:
            self._uses += 1
            self._holder[entry.lane] = None
            self._last_used[entry.lane] = self._uses
        elif effect is Effect.LAUNCH and isinstance(event, Granted):
            entry.lane = event.lane
            self._holder[event.lane] = request
            actions.append(Launch(entry.accepted, event.lane))
        elif effect is Effect.BLOCK and isinstance(event, Denied):
            self._blocked_until[event.lane] = event.until
        else:
            self._late += 1

    def _arrive(self, accepted: Accepted, actions: list[Action]) -> None:
        # A request that a free lane can take at once does not count against the queue.
        free = sum(holder is None for holder in self._holder)
        if len(self._queue) >= self._queue_limit + free:
            self._refused += 1
            actions.append(Refuse(accepted.request, len(self._queue), self._queue_limit))
            return
        self._accepted += 1
        self._requests[accepted.request] = _Entry(accepted)
        slot = accepted.slot % len(self._holder) if accepted.slot >= 0 else -1
        self._queue[accepted.request] = Waiting(accepted.request, slot)
        self._next_deadline = _earlier(self._next_deadline, accepted.deadline)

    def _expire(self, now: int, actions: list[Action]) -> None:
        if self._next_deadline is None or now < self._next_deadline:
            return
        owned = [entry.accepted for entry in self._requests.values() if entry.state in _OWNED]
        for accepted in owned:
            if accepted.deadline is not None and accepted.deadline <= now:
                self._take(Expired(accepted.request), actions)
        self._next_deadline = None
        for accepted in owned:
            if accepted.deadline is not None and accepted.deadline > now:
                self._next_deadline = _earlier(self._next_deadline, accepted.deadline)

    def _admit(self, now: int, actions: list[Action]) -> None:
        """One Reserve for each waiting request that a lane can take; the answer comes as an event."""
        if not self._queue:
            return
        idle = [
            IdleLane(lane, self._last_used[lane])
            for lane, holder in enumerate(self._holder)
            if holder is None and self._blocked_until[lane] <= now
        ]
        waiting = dict(self._queue)
        while (choice := choose_next(waiting.values(), idle)) is not None:
            request, lane = choice
            accepted = self._requests[request].accepted
            actions.append(Reserve(request, lane, len(accepted.tokens) + accepted.max_tokens))
            del waiting[request]
            idle = [each for each in idle if each.lane != lane]

    def _wake_at(self, now: int) -> int | None:
        wake = self._next_deadline
        if self._queue:
            for lane, holder in enumerate(self._holder):
                if holder is None and self._blocked_until[lane] > now:
                    wake = _earlier(wake, self._blocked_until[lane])
        return wake

    # ---- looking ---------------------------------------------------------------------------------

    def live(self) -> list[int]:
        """Requests that have not had their terminal event, oldest first."""
        return [request for request, entry in self._requests.items() if entry.state in _OWNED]

    def state(self, request: int) -> State:
        """The state of a request; ENDED for one that is not known (any more)."""
        entry = self._requests.get(request)
        return State.ENDED if entry is None else entry.state

    def statistics(self) -> SchedulerStatistics:
        """A snapshot of the counters."""
        states = [entry.state for entry in self._requests.values()]
        draining = states.count(State.DRAINING)
        queued = len(self._queue)
        return SchedulerStatistics(
            accepted=self._accepted,
            refused=self._refused,
            closed=self._closed,
            late=self._late,
            illegal=self._illegal,
            queued=queued,
            running=len(states) - draining - queued,
            draining=draining,
        )

    def broken_invariant(self) -> str | None:
        """The first invariant that does not hold, in words; None when all hold."""
        numbers = self.statistics()
        if numbers.accepted != numbers.closed + numbers.queued + numbers.running:
            return f"a request lost its terminal event: {numbers}"
        for lane, holder in enumerate(self._holder):
            if holder is not None and (holder not in self._requests or self._requests[holder].lane != lane):
                return f"lane {lane} is held by request {holder}, which does not know it"
        return None


def _close(request: int, event: Event) -> Close:
    if isinstance(event, Ended):
        return Close(request, event.finish, event.at, event.status, event.native_code, event.text)
    if isinstance(event, Cancelled):
        return Close(request, event.finish)
    return Close(request, Finish.DEADLINE if isinstance(event, Expired) else Finish.SHUTDOWN)


def _earlier(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return a if b is None else b
    return min(a, b)
