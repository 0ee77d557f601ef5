# SPDX-License-Identifier: Apache-2.0
"""Answers on their way out: waiting for the engine and the client at once, SSE framing, slow clients.

Whatever happens here (client gone, slow, cancelled, defect), every ticket of the request is cancelled on the
way out, so its lane is free within one tick. Cancelling an ended ticket does nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from calrt.logs import about

from .answers import Result
from .errors import Refused
from .messages import Begun, End, OwnerEvent, Piece, Progress, TokenProbs
from .outbox import Outbox
from .ticket import Ticket, failure_of

log = logging.getLogger("calrt.serve")
_T = TypeVar("_T")

SSE_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGone(Exception):
    """The client closed the connection; nobody reads an answer."""


class Dialect(Protocol):
    """How one API says what happens; each call gives the events to send."""

    tail: bytes

    def begin(self, index: int, begun: Begun, prompt_tokens: int) -> list[dict[str, Any]]:
        """Work on a prompt starts."""

    def progress(self, index: int, progress: Progress) -> list[dict[str, Any]]:
        """A step of the prefill."""

    def piece(self, index: int, piece: Piece, prompt_tokens: int) -> list[dict[str, Any]]:
        """A piece of text."""

    def close(self, index: int, end: End) -> list[dict[str, Any]]:
        """One prompt's answer is complete."""

    def finish(self, ends: list[End]) -> list[dict[str, Any]]:
        """All answers are complete."""

    def whole(self, results: list[Result], many: bool) -> Any:
        """The answer that is not streamed."""


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[_T]]) -> _T:
    """`work()`, given up with ClientGone as soon as the client disconnects. The body was read before."""
    results: list[_T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            results.append(await work())
        except Exception as error:  # raised below: a task group would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not results:
        raise ClientGone
    return results[0]


class Answer:
    """The tickets of one HTTP request, with the outbox they share. Use as a context: leaving cancels."""

    def __init__(self, tickets: Sequence[Ticket], outbox: Outbox) -> None:
        self.tickets = tickets
        self._outbox = outbox
        self._ends: dict[int, End] = {}

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Nobody waits for this answer any more."""
        for ticket in self.tickets:
            ticket.cancel()

    @property
    def complete(self) -> bool:
        """Whether every ticket has ended."""
        return len(self._ends) == len(self.tickets)

    @property
    def ends(self) -> list[End]:
        """The ends, in the order of the prompts."""
        return [self._ends[index] for index in sorted(self._ends)]

    async def take(self) -> list[tuple[int, OwnerEvent]]:
        """The next events, at least one. Refused if a ticket ended with an error."""
        events = await self._outbox.take()
        for index, event in events:
            if isinstance(event, End):
                if (refused := failure_of(event)) is not None:
                    raise refused
                self._ends[index] = event
        return events

    async def collect(self) -> list[Result]:
        """All results, in the order of the prompts."""
        texts: list[list[str]] = [[] for _ in self.tickets]
        tokens: list[list[int]] = [[] for _ in self.tickets]
        probs: list[list[TokenProbs]] = [[] for _ in self.tickets]
        while not self.complete:
            for index, event in await self.take():
                if isinstance(event, Piece | End):
                    texts[index].append(event.text)
                    tokens[index] += event.tokens
                    probs[index] += event.probs
        return [
            Result(i, "".join(texts[i]), tuple(tokens[i]), tuple(probs[i]), end)
            for i, end in enumerate(self.ends)
        ]


class EventStream:
    """An ASGI response that streams an answer as server-sent events."""

    def __init__(
        self,
        answer: Answer,
        dialect: Dialect,
        first: list[tuple[int, OwnerEvent]],
        ping: float,
        send_timeout: float,
    ) -> None:
        self._answer = answer
        self._dialect = dialect
        self._first = first
        self._ping = ping if ping > 0 else float("inf")
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer:
            try:
                await unless_gone(receive, lambda: self._run(send))
            except ClientGone:
                log.debug("the client left its stream", extra=self._about())
            except TimeoutError:
                # The answer stays incomplete, so the server closes the connection.
                text = "a client did not read its stream for %.0f s; cancelled"
                log.warning(text, self._send_timeout, extra=self._about())

    def _about(self) -> dict[str, Any]:
        return about(request_ids=[ticket.accepted.request for ticket in self._answer.tickets])

    async def _run(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)}
        await self._send(send, start)
        try:
            await self._write(send, self._encode(self._first))
            while not self._answer.complete:
                with anyio.move_on_after(self._ping) as silence:
                    events = await self._answer.take()
                await self._write(send, b":\n\n" if silence.cancelled_caught else self._encode(events))
            last = b"".join(map(frame, self._dialect.finish(self._answer.ends)))
            await self._write(send, last + self._dialect.tail, more=False)
        except Refused as refused:
            await self._write(send, frame(refused.body()), more=False)

    def _encode(self, events: list[tuple[int, OwnerEvent]]) -> bytes:
        return b"".join(frame(each) for index, event in events for each in self._say(index, event))

    def _say(self, index: int, event: OwnerEvent) -> list[dict[str, Any]]:
        prompt_tokens = len(self._answer.tickets[index].accepted.tokens)
        if isinstance(event, Piece):
            return self._dialect.piece(index, event, prompt_tokens)
        if isinstance(event, End):
            return self._dialect.close(index, event)
        if isinstance(event, Begun):
            return self._dialect.begin(index, event, prompt_tokens)
        return self._dialect.progress(index, event)

    async def _write(self, send: Send, data: bytes, more: bool = True) -> None:
        if data or not more:
            await self._send(send, {"type": "http.response.body", "body": data, "more_body": more})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        with anyio.fail_after(self._send_timeout):
            await send(message)


def frame(event: dict[str, Any]) -> bytes:
    """One server-sent event. JSON has no raw line ends, so one data line is enough."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
