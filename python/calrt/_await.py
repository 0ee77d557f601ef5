# SPDX-License-Identifier: Apache-2.0
"""`await job`: one descriptor per event loop says which jobs have ended. No foreign thread runs Python."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

from calrt._core import Completions, Job
from calrt.errors import CalrtError


class _Watcher:
    """The jobs one event loop waits for. The loop watches the descriptor only while there are any."""

    # It must not hold the loop: it is the value of a dictionary whose weak key the loop is.
    def __init__(self) -> None:
        self._completions = Completions()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}

    def future(self, job: Job) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.add_reader(self._completions.fileno(), self._wake)
        self._waiting.setdefault(job.job_seq, []).append(future)
        self._completions.watch(job)
        return future

    def forget(self, job: Job, future: asyncio.Future[None]) -> None:
        futures = self._waiting.get(job.job_seq, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiting.pop(job.job_seq, None)
        if not self._waiting:
            asyncio.get_running_loop().remove_reader(self._completions.fileno())

    def _wake(self) -> None:
        for job_seq in self._completions.drain():
            for future in self._waiting.get(job_seq, ()):
                if not future.done():
                    future.set_result(None)


_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watcher] = WeakKeyDictionary()


async def wait_for_job(job: Job) -> Job:
    """Waits in the running loop until `job` has ended, and returns it; raises the job's own error.

    Cancelling this wait requests `job.cancel()`, best effort.
    """
    if not job.done:
        loop = asyncio.get_running_loop()
        watcher = _watchers.get(loop)
        if watcher is None:
            watcher = _watchers[loop] = _Watcher()
        future = watcher.future(job)
        try:
            await future
        except asyncio.CancelledError:
            with suppress(CalrtError):  # the job ends by itself; the caller wants the cancellation
                job.cancel()
            raise
        finally:
            watcher.forget(job, future)
    return job.wait(timeout=0)
