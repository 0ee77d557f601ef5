# SPDX-License-Identifier: Apache-2.0
"""`job.add_done_callback`: one thread calls them, or an event loop does. No foreign thread runs Python."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import threading
from collections.abc import Callable
from itertools import count
from weakref import WeakKeyDictionary

from calrt._arguments import function, refuse
from calrt._await import watcher_of
from calrt._core import Completions, Job
from calrt._enums import Status
from calrt.errors import error_for
from calrt.logs import about

_log = logging.getLogger("calrt.callbacks")

Callback = Callable[[Job], object]

_EXIT_S = 2.0  # a callback that runs longer does not hold up the end of the process
_MOST_WAITING = 128  # on a thread or a loop: less than the outputs that one graph can lend
_STOP = 0  # the tag that ends the thread


class _Caller:
    """The thread that calls, started with the first callback, and what it has to call. Thread-safe."""

    def __init__(self) -> None:
        self._completions = Completions()
        self._tags = count(_STOP + 1)
        self._waiting: dict[int, tuple[Job, Callback]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, job: Job, fn: Callback) -> None:
        with self._lock:
            _check_room(len(self._waiting))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="calrt-callbacks", daemon=True)
                thread.start()
                self._thread = thread
            tag = next(self._tags)
            self._waiting[tag] = (job, fn)
        self._completions.watch(job, tag)

    def stop(self) -> None:
        """What has not been called yet is not called."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._completions.post(_STOP)
            thread.join(_EXIT_S)

    def _run(self) -> None:
        readable = select.poll()
        readable.register(self._completions.fileno(), select.POLLIN)
        while True:
            readable.poll()
            tags = self._completions.drain()
            if _STOP in tags:
                return
            for tag in tags:
                _call(*self._waiting.pop(tag))


def _check_room(waiting: int) -> None:
    if waiting >= _MOST_WAITING:
        raise error_for(
            Status.QUEUE_FULL,
            f"{waiting} callbacks wait for their jobs, as many as may: each holds its job and its outputs; "
            "wait for some of the jobs first",
        )


def _call(job: Job, fn: Callback) -> None:
    try:
        fn(job)
    except BaseException:  # whatever it is, it is the callback's own; the next one is called all the same
        _log.exception("job %d: its callback %r failed", job.job_seq, fn, extra=about(job.job_seq))


_caller = _Caller()
_on_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
"""Callbacks that wait on each loop."""
_loops_lock = threading.Lock()


def _at_exit() -> None:
    _caller.stop()


def _after_fork() -> None:
    global _caller, _loops_lock
    _loops_lock = threading.Lock()
    _caller = _Caller()  # the thread, and the jobs it waited for, are the parent's


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def add_done_callback(job: Job, fn: Callback, loop: asyncio.AbstractEventLoop | None) -> None:
    """Calls `fn(job)` exactly once when `job` has ended; see `Job.add_done_callback`."""
    function("fn", fn)
    if loop is None:
        _caller.add(job, fn)
        return
    if not isinstance(loop, asyncio.AbstractEventLoop):
        refuse("loop", loop, "an asyncio event loop or None")
    if loop.is_closed():
        raise error_for(Status.INVALID_ARGUMENT, "loop is closed: it calls nothing any more")
    with _loops_lock:
        _check_room(_on_loops.get(loop, 0))
        _on_loops[loop] = _on_loops.get(loop, 0) + 1

    def call(_: asyncio.Future[None]) -> None:
        with _loops_lock:
            _on_loops[loop] -= 1
        fn(job)  # an exception goes to the loop's handler

    def watch() -> None:
        future: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(call)
        watcher_of(loop).watch(job, future)

    try:
        running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        watch()
    else:
        try:
            loop.call_soon_threadsafe(watch)
        except RuntimeError:  # closed meanwhile
            raise error_for(Status.INVALID_ARGUMENT, "loop is closed: it calls nothing any more") from None
