# SPDX-License-Identifier: Apache-2.0
"""Awaiting jobs and lanes: one descriptor per event loop says what ended. No foreign thread runs Python."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import suppress
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, ref

from calrt._core import Completions, Job, Lane, LaneWaiter
from calrt.errors import CalrtError


class Watcher(dict[int, "asyncio.Future[None]"]):
    """The futures of one event loop that wait for jobs and lanes, by tag.

    The loop watches its descriptor until it closes. To be used on the loop's own thread.
    """

    # Its futures hold the loop, so it is the loop alone that holds it, as the reader of the descriptor.
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._completions = Completions()
        self._tags = count()
        loop.add_reader(self._completions.fileno(), self._completions.resolve, self)

    def watch(self, job: Job, future: asyncio.Future[None]) -> int:
        """Gives `future` a result when `job` has ended. The tag to forget it by."""
        tag = next(self._tags)
        self[tag] = future
        self._completions.watch(job, tag)
        return tag

    def watch_lane(self, waiter: LaneWaiter, future: asyncio.Future[None]) -> int:
        """The same of a lane that is waited for."""
        tag = next(self._tags)
        self[tag] = future
        waiter.notify(self._completions, tag)
        return tag

    def forget(self, tag: int) -> None:
        """Leaves the future alone."""
        self.pop(tag, None)


_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Watcher]] = WeakKeyDictionary()


def watcher_of(loop: asyncio.AbstractEventLoop) -> Watcher:
    """The loop's watcher, made with the first need."""
    known = _watchers.get(loop)
    watcher = known() if known is not None else None
    if watcher is None:
        watcher = Watcher(loop)
        _watchers[loop] = ref(watcher)
    return watcher


def wait_for_job(job: Job) -> Generator[Any, None, Job]:
    """Waits in the running loop until `job` has ended, and returns it; raises the job's own error.

    A job that has ended is answered at once. Cancelling this wait requests `job.cancel()`, best effort.
    """
    if not job.done:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        watcher = watcher_of(loop)
        tag = watcher.watch(job, future)
        try:
            yield from future
        except BaseException as ended:
            watcher.forget(tag)
            if isinstance(ended, asyncio.CancelledError):
                with suppress(CalrtError):  # the job ends by itself; the caller wants the cancellation
                    job.cancel()
            raise
    return job.wait(0.0)


LOOK_S = 0.1  # a lane may come free by itself, e.g. when a reservation's time has passed


async def wait_for_lane(waiter: LaneWaiter) -> Lane:
    """The lane, or the wait's own error. Cancelling this wait gives the place or the granted lane back."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    watcher = watcher_of(loop)
    tag = watcher.watch_lane(waiter, future)

    def look() -> None:
        if not future.done() and not waiter.poll():  # else the descriptor tells
            loop.call_later(LOOK_S, look)

    loop.call_later(LOOK_S, look)
    try:
        await future
    except BaseException:
        watcher.forget(tag)
        waiter.cancel()
        raise
    if not waiter.moves:
        return waiter.take()
    return await loop.run_in_executor(None, waiter.take)  # a lane that nobody awaits any more is given back
