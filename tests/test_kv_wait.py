# SPDX-License-Identifier: Apache-2.0
"""Waiting for a lane, by threads and by event loops: one outcome each, nothing lost, no spinning."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import calrt
from calrt.kv import CancelToken, Lane

LANES = 4


@pytest.fixture
def null_model(null_package: Path) -> Iterator[calrt.Model]:
    with calrt.open("null") as device, device.load(null_package, lanes=LANES, cells=128) as model:
        yield model
        model.kv.check_integrity()


def all_lanes(model: calrt.Model) -> list[Lane]:
    return [model.kv.reserve(4) for _ in range(LANES)]


def test_a_blocked_wait_costs_no_processor(null_model: calrt.Model) -> None:
    """B014, and the spin that calrt replaces: 1 s of waiting takes < 5 ms."""
    held = all_lanes(null_model)
    begin = time.thread_time()
    with pytest.raises(calrt.KvTimeoutError):
        null_model.kv.reserve(4, timeout=1.0)
    assert time.thread_time() - begin < 0.005

    async def wait() -> None:
        with pytest.raises(calrt.KvTimeoutError):
            await null_model.kv.areserve(4, timeout=1.0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    begin = time.thread_time()
    loop.run_until_complete(wait())
    assert time.thread_time() - begin < 0.02  # with the loop's own
    loop.close()
    held.pop().release()
    null_model.kv.reserve(4, timeout=0).release()


def test_an_awaited_lane_comes_when_one_is_freed(null_model: calrt.Model) -> None:
    held = all_lanes(null_model)

    async def run() -> list[int]:
        waits = [asyncio.ensure_future(null_model.kv.areserve(4, timeout=30)) for _ in range(2)]
        await asyncio.sleep(0)
        assert null_model.kv.stats()["waiting"] == 2
        held[2].release()
        first = await waits[0]
        assert not waits[1].done()
        first.release()
        second = await waits[1]
        second.release()
        return [first.index, second.index]

    assert asyncio.run(run()) == [held[2].index] * 2


@pytest.mark.parametrize("granted", [False, True])
def test_a_cancelled_await_gives_back_what_it_had(null_model: calrt.Model, granted: bool) -> None:
    held = all_lanes(null_model)

    async def run() -> None:
        task = asyncio.ensure_future(null_model.kv.areserve(4, timeout=30))
        await asyncio.sleep(0)
        if granted:
            held.pop().release()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    stats = null_model.kv.stats()
    assert (stats["waiting"], stats["free"]) == (0, int(granted))


def test_a_token_cancels_waits_of_both_kinds_and_those_to_come(null_model: calrt.Model) -> None:
    held, token = all_lanes(null_model), CancelToken()

    async def run() -> None:
        tasks = [asyncio.ensure_future(null_model.kv.areserve(4, 30, token)) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Timer(0.05, token.cancel).start()
        with pytest.raises(calrt.CancelledJobError):
            null_model.kv.reserve(4, timeout=30, cancel=token)
        for task in tasks:
            with pytest.raises(calrt.CancelledJobError):
                await task

    asyncio.run(run())
    assert token.cancelled
    assert null_model.kv.stats()["waiting"] == 0
    held.pop().release()
    with pytest.raises(calrt.CancelledJobError):
        null_model.kv.reserve(4, cancel=token)
    assert null_model.kv.free_lanes() == 1


def test_closing_the_model_ends_every_wait(null_package: Path) -> None:
    with calrt.open("null") as device, device.load(null_package, lanes=LANES) as model:
        held = all_lanes(model)

        async def run() -> None:
            task = asyncio.ensure_future(model.kv.areserve(4, timeout=30))
            await asyncio.sleep(0)
            model.close()
            with pytest.raises(calrt.StateError, match="closed"):
                await task

        asyncio.run(run())
        assert len(held) == LANES


def test_what_can_never_fit_holds_nobody_up(null_model: calrt.Model) -> None:
    held = all_lanes(null_model)

    async def run() -> None:
        waiting = asyncio.ensure_future(null_model.kv.areserve(4, timeout=30))
        await asyncio.sleep(0)
        with pytest.raises(calrt.InvalidArgumentError, match="tokens=129"):
            await null_model.kv.areserve(129)
        held.pop().release()
        (await waiting).release()

    asyncio.run(run())


def test_the_queue_is_bounded(null_model: calrt.Model) -> None:
    held = all_lanes(null_model)
    waiters = [null_model.kv.native.enqueue(4, 30) for _ in range(64)]
    with pytest.raises(calrt.CapacityError, match="64"):
        null_model.kv.native.enqueue(4, 30)
    for waiter in waiters:
        assert not waiter.poll()
        waiter.cancel()
        assert waiter.poll()
        with pytest.raises(calrt.CancelledJobError):
            waiter.take()
        with pytest.raises(calrt.StateError):
            waiter.take()
    assert len(held) == LANES


def test_eight_threads_lose_nothing(null_model: calrt.Model) -> None:
    """Waits, cancels, awaits and releases race; every call has one outcome and every lane comes back."""
    outcomes: Counter[str] = Counter()
    kv = null_model.kv

    def use(lane: Lane) -> None:
        kv.clear(lane)
        kv.seq_add(lane, 0, -1, 0)
        kv.snapshot(lane.index)
        lane.release()

    async def awaits(number: int) -> None:
        for turn in range(60):
            task = asyncio.ensure_future(kv.areserve(4, timeout=0.001 * (turn % 4)))
            await asyncio.sleep(0)
            if turn % 3 == number % 3:
                task.cancel()
            try:
                use(await task)
                outcomes["lane"] += 1
            except (asyncio.CancelledError, calrt.KvTimeoutError) as error:
                outcomes[type(error).__name__] += 1

    def waits(number: int) -> None:
        for turn in range(60):
            token = CancelToken()
            if turn % 3 == 0:
                threading.Timer(0.0005, token.cancel).start()
            try:
                use(kv.reserve(4, timeout=0.001 * (turn % 4), cancel=token))
                outcomes["lane"] += 1
            except (calrt.CancelledJobError, calrt.KvTimeoutError) as error:
                outcomes[type(error).__name__] += 1

    threads = [
        threading.Thread(target=lambda n=n: asyncio.run(awaits(n)) if n % 2 else waits(n)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert sum(outcomes.values()) == 8 * 60
    assert outcomes["lane"] > 0
    assert (kv.free_lanes(), kv.stats()["waiting"]) == (LANES, 0)


def test_a_child_of_fork_is_refused_and_does_not_hang(null_model: calrt.Model) -> None:
    kv, lane = null_model.kv, null_model.kv.reserve(4)
    child = os.fork()
    if child == 0:
        told = 0
        for call in (lambda: kv.reserve(4), lambda: kv.try_reserve(4), lambda: kv.clear(lane),
                     lambda: kv.apply(lane), lambda: kv.native.enqueue(4)):  # fmt: skip
            try:
                call()
            except calrt.CalrtError:
                told += 1
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    lane.release()
    assert kv.free_lanes() == LANES


LOST = "the device was lost|was lost, and with it"


def test_a_lost_device_ends_every_wait_at_once(null_package: Path) -> None:
    """A job of whoever holds the lanes is told; nobody waits out his time for a lane that cannot come."""
    with calrt.open("null", layers="fault:submit status=DEVICE_LOST") as device:
        model = device.load(null_package, lanes=LANES, cells=128)
        kv, held, ends = model.kv, all_lanes(model), list[BaseException]()

        def wait() -> None:
            try:
                kv.reserve(4, timeout=120)
            except calrt.CalrtError as error:
                ends.append(error)

        async def run() -> None:
            tasks = [asyncio.ensure_future(kv.areserve(4, timeout=120)) for _ in range(3)]
            thread = threading.Thread(target=wait)
            thread.start()
            while kv.stats()["waiting"] < 4:
                await asyncio.sleep(0.005)
            with pytest.raises(calrt.DeviceLostError):
                calrt.Sequence(model, held[0]).prefill([1, 2, 3])
            assert kv.stats()["waiting"] == 0  # at once
            for task in tasks:
                with pytest.raises(calrt.DeviceLostError, match="open it again"):
                    await task
            thread.join(60)

        begin = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - begin < 60
        assert [type(end) for end in ends] == [calrt.DeviceLostError]
        assert kv.stats()["states"] == {"OFFLINE": LANES}
        assert kv.can_allocate(1)["now"] is False
        for ask in (lambda: kv.try_reserve(1), lambda: kv.try_reserve(1, prefer=1, only=True),
                    lambda: kv.reserve(1), lambda: kv.native.enqueue(1), lambda: kv.clear(held[1]),
                    lambda: held[1].length, lambda: held[1].truncate(0)):  # fmt: skip
            with pytest.raises(calrt.DeviceLostError, match=LOST):
                ask()
        kv.check_integrity()
        held.clear()
        kv.check_integrity()


def test_whoever_was_told_of_the_loss_the_lanes_are_gone(null_package: Path) -> None:
    """A question to the device, not a job of the model: the wait ends at its next look."""
    with calrt.open("null", layers="fault:device_health status=DEVICE_LOST") as device:
        kv = device.load(null_package, lanes=LANES, cells=128).kv
        held, ends = [kv.reserve(4) for _ in range(LANES)], list[BaseException]()

        def wait() -> None:
            try:
                kv.reserve(4, timeout=120)
            except calrt.CalrtError as error:
                ends.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while kv.stats()["waiting"] < 1:
            time.sleep(0.005)
        with pytest.raises(calrt.DeviceLostError):
            device.health()
        assert kv.snapshot(0)["state"] == "OFFLINE"
        thread.join(60)
        assert [type(end) for end in ends] == [calrt.DeviceLostError]
        assert len(held) == LANES
        # What is loaded afterwards was not there when the device was lost.
        with device.load(null_package, lanes=LANES, cells=128) as second, second.kv.reserve(4) as lane:
            assert lane.length == 0


@pytest.mark.parametrize("what", ["model", "device"])
def test_a_close_ends_the_waits_of_both_kinds(null_package: Path, what: str) -> None:
    device = calrt.open("null")
    model = device.load(null_package, lanes=LANES, cells=128)
    held, ends = all_lanes(model), list[BaseException]()

    def wait() -> None:
        try:
            model.kv.reserve(4, timeout=120)
        except calrt.CalrtError as error:
            ends.append(error)

    async def run() -> None:
        task = asyncio.ensure_future(model.kv.areserve(4, timeout=120))
        thread = threading.Thread(target=wait)
        thread.start()
        while model.kv.stats()["waiting"] < 2:
            await asyncio.sleep(0.005)
        (model if what == "model" else device).close()
        with pytest.raises(calrt.StateError, match="closed"):
            await task
        thread.join(60)

    begin = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - begin < 60
    assert [type(end) for end in ends] == [calrt.StateError]
    assert len(held) == LANES
    device.close()
