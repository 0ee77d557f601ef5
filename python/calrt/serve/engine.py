# SPDX-License-Identifier: Apache-2.0
"""The one file of the serving layer with a clock and the native runner.

Everything runs on one event loop: `submit` and `cancel` put events into the inbox, the runner's file
descriptor brings the device's events, a timer brings deadlines. Each of them ends in `_turn`:

    inbox -> scheduler.step -> actions -> runner.start / cancel, kv.try_reserve -> outboxes

The device never waits for this: the native runner repeats its plan by itself. A turn never waits either.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

import msgspec

from calrt.detokenizer import Detokenizer
from calrt.logs import about

from .errors import Kind, Refused, bad_field, too_long
from .fields import RANDOM_SEED
from .messages import (
    Accepted,
    Action,
    Arrived,
    Cancelled,
    ChunkDone,
    Close,
    Denied,
    Emit,
    End,
    Ended,
    Event,
    Finish,
    Granted,
    Illegal,
    Launch,
    Piece,
    Refuse,
    Reserve,
    RunnerEvent,
    Sampling,
    Started,
    Stop,
    Token,
    Unloaded,
)
from .outbox import Outbox
from .ports import Lane, LaneStore, Runner, Vocabulary
from .scheduler import Scheduler, SchedulerStatistics
from .text import TextStream
from .ticket import Live, Ticket, failure_of

log = logging.getLogger("calrt.serve")

_INBOX_PER_STEP = 256
_QUEUE_PER_LANE = 16
_DENIED_RETRY_NS = 20_000_000
_DEVICE_LOST = 27
_INTERNAL = 29


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the engine. Times in seconds."""

    queue: int = -1
    """Requests that may wait for a lane; -1 means 16 for each lane."""
    timeout: float = 3600.0
    outbox: int = 1024
    send_timeout: float = 10.0


class EngineStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the engine: the scheduler's counters, the runner's, and the cost of turns."""

    scheduler: SchedulerStatistics
    runner: dict[str, int]
    turns: int
    longest_turn_ms: float
    finished: dict[str, int]


class Engine:
    """Continuous batching of requests over the lanes of one model. Lives on one event loop.

    Use it as `async with`. The model's native runner belongs to the engine; the model itself does not.
    """

    def __init__(
        self,
        runner: Runner,
        lanes: LaneStore,
        vocabulary: Vocabulary,
        limits: Limits | None = None,
        *,
        vocab: int = 0,
    ) -> None:
        """`vocab` is the model's number of logits, where that is more than the tokenizer's tokens."""
        self.limits = limits or Limits()
        self.vocabulary = vocabulary
        self.cells = lanes.cells
        self.lanes = lanes.lanes
        # A model may have logits beyond its tokens; drawing such a one adds no text.
        unnamed = max(0, vocab - len(vocabulary.byte_table))
        self._table = [*vocabulary.byte_table, *[b""] * unnamed]
        self._runner = runner
        self._store = lanes
        self.queue_limit = self.limits.queue if self.limits.queue >= 0 else _QUEUE_PER_LANE * lanes.lanes
        self._scheduler = Scheduler(lanes.lanes, self.queue_limit)
        self._inbox: deque[Event] = deque()
        self._live: dict[int, Live] = {}
        self._reserved: dict[int, Lane] = {}
        self._last_request = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turning = False
        self._stopping = False
        self._collapsed = False
        self._idle = asyncio.Event()
        self._refusal: Refused | None = None
        self._turns = 0
        self._longest_turn_ns = 0
        self._finished: dict[str, int] = {}
        self.failure: str | None = None
        """Why the device cannot be used any more, None while it can."""
        self.lost = asyncio.Event()
        """Set when the device is lost: it has to be opened anew."""

    @classmethod
    def open(cls, model: Any, limits: Limits | None = None, **runner_options: Any) -> Engine:
        """An engine for a loaded `calrt.Model`. `runner_options` go to the native StepRunner."""
        from .backend import take_apart

        parts = take_apart(model, **runner_options)
        return cls(parts.runner, parts.lanes, parts.tokenizer, limits, vocab=parts.vocab)

    # ---- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Engine:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=0.0)

    @property
    def started(self) -> bool:
        """Whether it is attached to an event loop."""
        return self._loop is not None

    def start(self) -> None:
        """Attach to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._runner.fileno(), self._on_runner)
        self._idle.set()

    async def close(self, drain: float = 0.0) -> None:
        """Refuse new requests, let running ones finish for `drain` seconds, end the rest, stop the runner.

        Every owner has its terminal event when this returns. Safe to call twice.
        """
        if self._loop is None:
            return
        self._stopping = True
        await self._wait_idle(drain)
        self._turn([Unloaded(request) for request in self._scheduler.live()])
        await self._wait_idle(5.0)
        if self._timer is not None:
            self._timer.cancel()
        loop, self._loop = self._loop, None
        loop.remove_reader(self._runner.fileno())
        await loop.run_in_executor(None, self._runner.close)

    async def _wait_idle(self, seconds: float) -> None:
        numbers = self._scheduler.statistics()
        if self._collapsed or numbers.queued + numbers.running + numbers.draining == 0:
            return
        self._idle.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return

    # ---- requests --------------------------------------------------------------------------------

    def submit(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int = -1,
        sampling: Sampling | None = None,
        stops: Sequence[str] = (),
        slot: int = -1,
        timeout: float | None = None,
        outbox: Outbox | None = None,
        index: int = 0,
    ) -> Ticket:
        """Accept a request, or raise Refused naming what is wrong. Never waits.

        `tokens` are the prompt's ids; `max_tokens` -1 means until the lane is full; `timeout` is in
        seconds from now. The accepted request ends with exactly one End in its outbox.
        """
        if self._loop is None or self._stopping:
            raise Refused(Kind.UNAVAILABLE, "The server is stopping; send the request to another one")
        if self.failure is not None:
            raise Refused(Kind.UNAVAILABLE, f"The device has failed: {self.failure}. Restart the server")
        now = time.monotonic_ns()
        sampling = sampling or Sampling()
        if sampling.seed == RANDOM_SEED:
            sampling = msgspec.structs.replace(sampling, seed=secrets.randbelow(RANDOM_SEED))
        ids = self._checked(tokens)
        max_tokens = _whole("max_tokens", max_tokens)
        slot = _whole("slot", slot)
        if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
            raise bad_field("stops", "must be a sequence of strings")
        room = self.cells - len(ids)
        bound = max_tokens < 0 or max_tokens > room
        self._last_request += 1
        accepted = Accepted(
            request=self._last_request,
            tokens=ids,
            max_tokens=room if bound else max(1, max_tokens),
            context_bound=bound,
            stop_tokens=tuple(self.vocabulary.eog),
            stops=tuple(stops),
            sampling=sampling,
            slot=slot,
            arrived=now,
            deadline=now + int((self.limits.timeout if timeout is None else timeout) * 1e9),
        )
        if outbox is None:
            outbox = self.outbox()
        ticket = Ticket(accepted, outbox, index, self.cancel)
        text = TextStream(Detokenizer(self._table), accepted.stops)
        self._live[accepted.request] = Live(ticket, text)
        self._refusal = None
        self._turn([Arrived(accepted)])
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        return ticket

    def outbox(self) -> Outbox:
        """A fresh outbox with this engine's bounds."""
        return Outbox(self.limits.outbox, int(self.limits.send_timeout * 1e9))

    def cancel(self, request: int, finish: Finish = Finish.CANCELLED) -> None:
        """End a request for its owner now; its lane is free within one tick."""
        if request in self._live:
            self._turn([Cancelled(request, finish)])

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int = -1,
        sampling: Sampling | None = None,
        stops: Sequence[str] = (),
    ) -> AsyncIterator[Piece]:
        """Pieces of the answer to a prompt of token ids.

        Closing the iterator (`contextlib.aclosing`) frees the lane within one tick. Raises Refused if the
        request is not accepted, fails or is cut off by a shutdown.
        """
        ticket = self.submit(tokens, max_tokens=max_tokens, sampling=sampling, stops=stops)
        try:
            while True:
                for _, event in await ticket.outbox.take():
                    if isinstance(event, Piece):
                        yield event
                    elif isinstance(event, End):
                        if (refused := failure_of(event)) is not None:
                            raise refused
                        if event.text or event.tokens:
                            yield Piece(event.text, event.tokens, event.probs, event.predicted, event.timings)
                        return
        finally:
            ticket.cancel()

    def _checked(self, tokens: Sequence[int]) -> tuple[int, ...]:
        if isinstance(tokens, str | bytes) or not hasattr(tokens, "__len__"):
            raise bad_field("tokens", f"must be a sequence of token ids, not {type(tokens).__name__}")
        if not len(tokens):
            raise bad_field("prompt", "is empty, and this model puts no token before a text")
        if len(tokens) >= self.cells:
            raise too_long(len(tokens), self.cells)
        try:
            ids = tuple(map(operator.index, tokens))
        except TypeError:
            raise bad_field("tokens", "must be a sequence of token ids, which are whole numbers") from None
        size = self.vocabulary.vocab_size
        for token in (min(ids), max(ids)):
            if not 0 <= token < size:
                raise bad_field("prompt", f"token id {token} is not in the vocabulary (0 to {size - 1})")
        return ids

    # ---- the turn --------------------------------------------------------------------------------

    def _on_runner(self) -> None:
        raws = self._runner.drain()
        if self._collapsed:
            return
        self._turn([event for raw in raws if (event := _event(raw)) is not None])

    def _turn(self, events: Sequence[Event] = ()) -> None:
        """Step until the inbox is empty. Events that a turn causes itself are taken in the same turn."""
        self._inbox.extend(events)
        if self._turning:
            return
        self._turning = True
        began = time.monotonic_ns()
        wake_at: int | None = None
        try:
            wake_at = self._steps()
        except Exception as error:
            log.exception("the engine failed; every running request ends with an error")
            self._collapse(error)
        finally:
            self._turning = False
        now = time.monotonic_ns()
        self._turns += 1
        self._longest_turn_ns = max(self._longest_turn_ns, now - began)
        self._set_timer(wake_at, now)
        if not self._live:
            self._at_rest()

    def _steps(self) -> int | None:
        answers: list[Event] = []
        while True:
            # Answers to our own Reserve go first: a cancel must not overtake the lane it is about.
            batch = answers
            while self._inbox and len(batch) < _INBOX_PER_STEP:
                batch.append(self._inbox.popleft())
            plan = self._scheduler.step(batch, time.monotonic_ns())
            answers = []
            for action in plan.actions:
                self._do(action, answers)
            if not answers and not self._inbox:
                return plan.wake_at

    def _do(self, action: Action, answers: list[Event]) -> None:
        match action:
            case Emit(request, event):
                self._tell(self._live[request], event)
            case Reserve():
                answers.append(self._reserve(action))
            case Launch(accepted, lane):
                self._launch(accepted, lane)
            case Stop(request):
                self._runner.cancel(request)
            case Close():
                self._close(action)
            case Refuse(request, waiting, limit):
                del self._live[request]
                self._refusal = Refused(
                    Kind.OVERLOADED,
                    f"The server is busy: {self.lanes} requests run and {waiting} wait "
                    f"(the queue holds {limit}). Try again later",
                )
            case Illegal(request, state, name):
                text = "request %d: event %s is not possible in state %s"
                log.error(text, request, name, state, extra=about(request_ids=[request]))

    def _collapse(self, error: Exception) -> None:
        """A defect of ours: nobody waits for ever, and no new work is taken."""
        self.failure = f"{type(error).__name__}: {error}"
        self._collapsed = True
        self._inbox.clear()
        now = time.monotonic_ns()
        for request, live in list(self._live.items()):
            self._runner.cancel(request)
            end = End(finish=Finish.FAILED, lane=live.lane, status=_INTERNAL, error=self.failure)
            live.ticket.outbox.push(live.ticket.index, end, now)
        self._live.clear()

    def _reserve(self, action: Reserve) -> Event:
        try:
            lane = self._store.try_reserve(action.cells, action.lane, True)
        except Exception as error:
            now = time.monotonic_ns()
            if getattr(error, "status_class", "") in ("kv", "capacity"):
                return Denied(action.request, action.lane, now + _DENIED_RETRY_NS)
            return _failed(action.request, error, now)
        self._reserved[action.request] = lane
        return Granted(action.request, action.lane)

    def _launch(self, accepted: Accepted, index: int) -> None:
        lane = self._reserved.pop(accepted.request)
        self._live[accepted.request].lane = index
        try:
            self._runner.start(
                accepted.request,
                lane,
                accepted.tokens,
                stop_tokens=accepted.stop_tokens,
                max_tokens=accepted.max_tokens,
                deadline_ns=accepted.deadline,
                sampling=msgspec.structs.asdict(accepted.sampling),
            )
        except Exception as error:
            lane.release()
            self._inbox.append(_failed(accepted.request, error, time.monotonic_ns()))

    # ---- owners ----------------------------------------------------------------------------------

    def _tell(self, live: Live, event: Started | ChunkDone | Token) -> None:
        news = live.hear(event)
        if live.stopped:
            self._inbox.append(Cancelled(event.request, Finish.WORD))
        if news is not None:
            ticket = live.ticket
            if not ticket.outbox.push(ticket.index, news, event.at):
                self._inbox.append(Cancelled(event.request, Finish.SLOW))

    def _close(self, close: Close) -> None:
        live = self._live.pop(close.request)
        end = live.end(close)
        finish = end.finish
        self._finished[finish.name.lower()] = self._finished.get(finish.name.lower(), 0) + 1
        if finish is Finish.FAILED:
            text = "request %d failed: %s"
            log.error(text, close.request, close.text, extra=about(request_ids=[close.request]))
            if close.status == _DEVICE_LOST:
                self.failure = close.text or "it is lost"
                self.lost.set()
        live.ticket.outbox.push(live.ticket.index, end, time.monotonic_ns())

    # ---- timer and rest --------------------------------------------------------------------------

    def _set_timer(self, wake_at: int | None, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None and self._loop is not None:
            self._timer = self._loop.call_later(max(0.0, (wake_at - now) / 1e9), self._turn)

    def _at_rest(self) -> None:
        numbers = self._scheduler.statistics()
        if numbers.draining == 0:
            self._idle.set()
        if (broken := self._scheduler.broken_invariant()) is not None:
            log.error("the scheduler is inconsistent: %s", broken)

    def statistics(self) -> EngineStatistics:
        """A snapshot; costs nothing to the requests."""
        return EngineStatistics(
            scheduler=self._scheduler.statistics(),
            runner=dict(self._runner.statistics()),
            turns=self._turns,
            longest_turn_ms=self._longest_turn_ns / 1e6,
            finished=dict(self._finished),
        )


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise bad_field(name, f"must be a whole number, not {value!r}")
    return operator.index(value)


def _failed(request: int, error: Exception, now: int) -> Ended:
    status = int(getattr(error, "code", _INTERNAL))
    native = int(getattr(error, "native_code", 0) or 0)
    return Ended(request, Finish.FAILED, now, status, native, str(error))


def _event(raw: tuple[int, int, int, int, Any]) -> Event | None:
    kind, request, value, at, detail = raw
    if kind == RunnerEvent.TOKEN:
        return Token(request, value, at, detail)
    if kind == RunnerEvent.PREFILL:
        return ChunkDone(request, value, at)
    if kind == RunnerEvent.STARTED:
        return Started(request, at)
    if kind == RunnerEvent.ENDED:
        status, native, text = detail or (0, 0, "")
        return Ended(request, Finish(value), at, status, native, text)
    log.error("the runner sent an event of unknown kind %d", kind)
    return None
