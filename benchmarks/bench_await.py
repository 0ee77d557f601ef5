# SPDX-License-Identifier: Apache-2.0
"""From a job's completion to the line after `await job`, beside a bare eventfd with add_reader.

Both are made ready on the loop's own thread, one after the other, and behind the same submit, so that the row
compares the ways to the waiting task and not the machine's wake-ups or its caches. p50 of a round, best of
several; to reach: 1.5 x the bare loop.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter_ns

import pytest

import calrt

SAMPLES = 300

NewLoop = Callable[[], asyncio.AbstractEventLoop]

Loops: list[tuple[str, NewLoop]] = [("asyncio", asyncio.new_event_loop)]
try:
    import uvloop

    Loops.append(("uvloop", uvloop.new_event_loop))
except ImportError:
    pass


async def resumes_after(awaitable: Awaitable[object], complete: Callable[[], object]) -> int:
    """ns from the completion, which runs while a task waits, to the task's next line."""

    async def wait() -> int:
        await awaitable
        return perf_counter_ns()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)  # it waits now
    complete()
    begin = perf_counter_ns()
    return await task - begin


async def one_round(model: calrt.Model, lane: calrt.kv.Lane, other: calrt.kv.Lane) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        os.eventfd_read(descriptor)
        future.set_result(None)

    loop.add_reader(descriptor, wake)
    bare: list[int] = []
    job_ns: list[int] = []
    graph = model.graphs["decode_b1"]

    def submit(on: calrt.kv.Lane) -> calrt.Job:
        return graph.submit(tokens=[1], positions=[0], lanes=[on])

    def complete_bare() -> None:
        submit(other)
        os.eventfd_write(descriptor, 1)

    for _ in range(SAMPLES):
        for awaits_job in (False, True):
            job = submit(lane)
            if awaits_job:
                # The fault layer tells it inside the next job's submit, on this thread.
                job_ns.append(await resumes_after(job, lambda: submit(other)))
            else:
                future = loop.create_future()
                bare.append(await resumes_after(future, complete_bare))
            other.truncate(0)
            lane.truncate(0)
    loop.remove_reader(descriptor)
    os.close(descriptor)
    return statistics.median(job_ns), statistics.median(bare)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="no eventfd here")
@pytest.mark.parametrize(("name", "new_loop"), Loops, ids=[name for name, _ in Loops])
def test_await(
    perf, null_package: Path, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:  # type: ignore[no-untyped-def]
    medians: list[tuple[float, float]] = []
    with (
        calrt.open("null", layers="fault:completion swap every=2") as device,
        device.load(null_package, lanes=2, cells=64) as model,
        model.kv.reserve(8) as lane,
        model.kv.reserve(8) as other,
    ):
        graph = model.graphs["decode_b1"]
        graph.submit(tokens=[1], positions=[0], lanes=[other]).wait()  # from now on every second one is held
        other.truncate(0)
        loop = new_loop()
        perf.samples(lambda: medians.append(loop.run_until_complete(one_round(model, lane, other))), rounds=7)
        loop.close()
    value, limit = (min(column) for column in zip(*medians, strict=True))
    perf.record(f"completion -> await resumes, p50, {name}", value / 1e3, "us", limit=limit / 1e3)
