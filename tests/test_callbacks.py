# SPDX-License-Identifier: Apache-2.0
"""add_done_callback: once, on the right thread, whatever the callback does; nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import calrt

PATIENCE_S = 60.0  # ten times and more what anything here takes


@pytest.fixture
def null_model(null_package: Path) -> Iterator[calrt.Model]:
    with calrt.open("null") as device, device.load(null_package, lanes=4, cells=128) as model:
        yield model


@pytest.fixture
def late_model(null_package: Path) -> Iterator[calrt.Model]:
    """Its jobs end on a thread of the device, a moment after submit."""
    layers = "fault:completion delay_ms=5"
    with calrt.open("null", layers=layers) as device, device.load(null_package, lanes=4, cells=128) as model:
        yield model


@pytest.fixture
def held_model(null_package: Path) -> Iterator[calrt.Model]:
    """Its jobs end as they would when cancel() asks for it."""
    layers = "fault:completion hold cancel=normal"
    with calrt.open("null", layers=layers) as device, device.load(null_package, lanes=4, cells=128) as model:
        yield model


def submit(model: calrt.Model, lane: calrt.kv.Lane, **options: float) -> calrt.Job:
    return model.graphs["decode_b1"].submit(tokens=[1], positions=[lane.length], lanes=[lane], **options)


def test_a_callback_is_called_once_with_the_job_on_a_thread_of_ours(late_model: calrt.Model) -> None:
    calls: list[tuple[calrt.Job, str, str]] = []
    called = threading.Event()

    def note(job: calrt.Job) -> None:
        calls.append((job, job.state, threading.current_thread().name))
        called.set()

    with late_model.kv.reserve(4) as lane:
        job = submit(late_model, lane)
        assert job.add_done_callback(note) is None  # type: ignore[func-returns-value]
        assert called.wait(PATIENCE_S)
        job.wait()
    assert calls == [(job, "done", "calrt-callbacks")]


def test_a_job_that_has_ended_is_called_back_too(null_model: calrt.Model) -> None:
    seen: list[int] = []
    called = threading.Semaphore(0)
    with null_model.kv.reserve(64) as lane:
        for _ in range(50):
            job = submit(null_model, lane).wait()
            for _ in range(2):
                job.add_done_callback(lambda j: (seen.append(j.job_seq), called.release()))
    for _ in range(100):
        assert called.acquire(timeout=PATIENCE_S)
    assert seen == sorted(seen)
    assert len(seen) == 100
    assert len(set(seen)) == 50


def test_failed_and_lost_jobs_are_called_back(null_package: Path) -> None:
    layers = "fault:completion status=EXECUTION_FAILED nth=1/completion drop nth=2"
    with calrt.open("null", layers=layers) as device, device.load(null_package, lanes=4, cells=128) as model:
        states: list[str] = []
        called = threading.Semaphore(0)

        def note(job: calrt.Job) -> None:
            states.append(job.state)
            called.release()

        for deadline in (5.0, 0.05):
            with model.kv.reserve(4) as lane:
                submit(model, lane, deadline=deadline).add_done_callback(note)
                assert called.acquire(timeout=PATIENCE_S)
        assert states == ["failed", "lost"]


def test_an_exception_is_logged_and_the_next_callback_runs(
    null_model: calrt.Model, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()

    def fail(job: calrt.Job) -> None:
        raise SystemExit("not ours")

    with null_model.kv.reserve(4) as lane, caplog.at_level(logging.ERROR, "calrt.callbacks"):
        job = submit(null_model, lane)
        job.add_done_callback(fail)
        job.add_done_callback(lambda _: called.set())
        assert called.wait(PATIENCE_S)
    (record,) = [r for r in caplog.records if r.name == "calrt.callbacks"]
    assert f"job {job.job_seq}: its callback" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is SystemExit


def test_a_callback_may_wait_for_jobs_and_submit(late_model: calrt.Model) -> None:
    states: list[str] = []
    called = threading.Event()

    with late_model.kv.reserve(8) as lane, late_model.kv.reserve(8) as other:

        def nested(job: calrt.Job) -> None:
            try:
                states.append(job.wait().state)
                states.append(second.wait().state)
                states.append(submit(late_model, lane).wait(PATIENCE_S).state)
            finally:
                called.set()

        first, second = submit(late_model, lane), submit(late_model, other)
        first.add_done_callback(nested)
        assert called.wait(PATIENCE_S)
    assert states == ["done"] * 3


def test_with_a_loop_it_runs_on_that_loop(late_model: calrt.Model) -> None:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        threads: list[str] = []
        errors: list[str] = []
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        done: asyncio.Future[None] = loop.create_future()
        touched: set[str] = set()

        def create_future() -> asyncio.Future[None]:
            touched.add(threading.current_thread().name)
            return asyncio.Future(loop=loop)

        loop.create_future = create_future  # type: ignore[method-assign]

        def note(job: calrt.Job) -> None:
            threads.append(threading.current_thread().name)
            if len(threads) == 3:
                done.set_result(None)
            if len(threads) == 1:
                raise LookupError("the callback's own")

        with late_model.kv.reserve(8) as lane:
            for _ in range(2):
                job = submit(late_model, lane)
                job.add_done_callback(note, loop=loop)
                await job
            # From another thread, of a job that has ended.
            await asyncio.to_thread(lambda: job.add_done_callback(note, loop=loop))
            await asyncio.wait_for(done, PATIENCE_S)
        assert errors == ["the callback's own"]
        assert touched == {threading.current_thread().name}  # a loop is its own thread's alone
        return threads

    assert asyncio.run(run()) == [threading.current_thread().name] * 3


def test_wrong_arguments_are_named(null_model: calrt.Model) -> None:
    with null_model.kv.reserve(4) as lane:
        job = submit(null_model, lane)
        with pytest.raises(calrt.InvalidArgumentError, match="fn is 3: a function"):
            job.add_done_callback(3)  # type: ignore[arg-type]
        with pytest.raises(calrt.InvalidArgumentError, match="loop is 'main': an asyncio event loop"):
            job.add_done_callback(print, loop="main")  # type: ignore[arg-type]


def test_a_model_may_go_while_a_callback_runs(null_package: Path) -> None:
    for round_ in range(200):
        device = calrt.open("null")
        model = device.load(null_package, lanes=1, cells=128)
        running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def callback(job: calrt.Job, running=running, go_on=go_on, ended=ended) -> None:  # type: ignore[no-untyped-def]
            running.set()
            go_on.wait(PATIENCE_S)
            job.wait()
            ended.set()

        lane = model.kv.reserve(4)
        submit(model, lane).add_done_callback(callback)
        assert running.wait(PATIENCE_S)
        del model, lane
        if round_ % 2:
            device.close()
        del device
        if round_ % 20 == 0:
            gc.collect()
        go_on.set()
        assert ended.wait(PATIENCE_S)


EXIT = """
import sys, threading, time
import calrt
device = calrt.open("null", layers={layers!r})
model = device.load(sys.argv[1], lanes=1, cells=128)
lane = model.kv.reserve(4)
job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane], deadline=600.0)
running = threading.Event()
def callback(job):
    running.set()
    {body}
job.add_done_callback(callback)
{then}
print("end")
"""


@pytest.mark.parametrize(
    ("layers", "body", "then"),
    [
        ("fault:", "pass", "running.wait(60)"),
        ("fault:", "time.sleep(600)", "running.wait(60)"),  # still runs at exit
        ("fault:completion drop", "pass", "pass"),  # never comes
        ("fault:completion hold cancel=normal", "pass", "job.cancel(); sys.exit(0)"),
    ],
)
def test_the_process_ends_with_callbacks_in_every_state(
    null_package: Path, layers: str, body: str, then: str
) -> None:
    code = EXIT.format(layers=layers, body=body, then=then)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(null_package)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ("end" in ran.stdout) == ("exit" not in then)


def test_a_forked_child_has_callbacks_of_its_own(null_package: Path) -> None:
    code = """
import os, sys, threading
import calrt
def once(word):
    with calrt.open("null") as device, device.load(sys.argv[1], lanes=1, cells=128) as model:
        lane = model.kv.reserve(4)
        called = threading.Event()
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
        job.add_done_callback(lambda job: called.set())
        print(word, called.wait(60), flush=True)
once("parent")
child = os.fork()
if child == 0:
    once("child")
    sys.exit(0)
os.waitpid(child, 0)
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(null_package)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.stdout.splitlines() == ["parent True", "child True"], ran.stderr


def test_callbacks_that_wait_are_bounded(held_model: calrt.Model) -> None:
    calls: list[int] = []
    all_called = threading.Event()

    def note(job: calrt.Job) -> None:
        calls.append(job.job_seq)
        if len(calls) == 128:
            all_called.set()

    with held_model.kv.reserve(4) as lane:
        job = submit(held_model, lane)
        for _ in range(128):
            job.add_done_callback(note)
        with pytest.raises(calrt.CapacityError, match="128 callbacks wait for their jobs") as caught:
            job.add_done_callback(note)
        assert caught.value.retryable
        job.cancel()
        job.wait()
        assert all_called.wait(PATIENCE_S)
        job.add_done_callback(note)  # there is room again
    assert calls[:128] == [job.job_seq] * 128


def test_callbacks_that_wait_on_a_loop_are_bounded(held_model: calrt.Model) -> None:
    async def main(job: calrt.Job) -> None:
        loop = asyncio.get_running_loop()
        calls: list[calrt.Job] = []
        for _ in range(128):
            job.add_done_callback(calls.append, loop=loop)
        with pytest.raises(calrt.CapacityError, match="128 callbacks wait"):
            job.add_done_callback(calls.append, loop=loop)
        job.cancel()
        while len(calls) < 128:
            await asyncio.sleep(0.01)
        job.add_done_callback(calls.append, loop=loop)
        while len(calls) < 129:
            await asyncio.sleep(0.01)

    with held_model.kv.reserve(4) as lane:
        asyncio.run(asyncio.wait_for(main(submit(held_model, lane)), PATIENCE_S))


def test_a_closed_loop_is_refused(late_model: calrt.Model) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with late_model.kv.reserve(4) as lane:
        job = submit(late_model, lane)
        with pytest.raises(calrt.InvalidArgumentError, match="loop is closed"):
            job.add_done_callback(print, loop=loop)
        job.wait()
