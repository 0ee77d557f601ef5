# SPDX-License-Identifier: Apache-2.0
"""What lies between the engine and the reader of an answer: a bounded queue that never blocks the engine.

The engine puts events in and never waits. The reader takes all that is there at once. A reader that has
more than `high_mark` events waiting, the oldest for `send_timeout` or longer, is too slow: `push` says so,
and the engine cancels the request. Everything runs on one event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio

from .messages import OwnerEvent


class Outbox:
    """Events of one HTTP request; with several prompts each event carries its prompt's index."""

    def __init__(self, high_mark: int, send_timeout_ns: int) -> None:
        self._high_mark = high_mark
        self._send_timeout_ns = send_timeout_ns
        self._events: list[tuple[int, OwnerEvent]] = []
        self._oldest: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    def push(self, index: int, event: OwnerEvent, now: int) -> bool:
        """Put an event in. False when the reader is too slow; the event is in all the same."""
        self._events.append((index, event))
        if self._oldest is None:
            self._oldest = now
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return len(self._events) <= self._high_mark or now - self._oldest < self._send_timeout_ns

    async def take(self) -> list[tuple[int, OwnerEvent]]:
        """All events that are there, oldest first; waits while there is none. One reader at a time."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        self._oldest = None
        return events

    @property
    def backlog(self) -> int:
        """Events that nobody has taken yet."""
        return len(self._events)
