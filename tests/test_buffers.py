# SPDX-License-Identifier: Apache-2.0
"""Buffers and pools of them: sizes by the driver's rules, closing, leases in turn, waits that end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import calrt


@pytest.fixture
def null() -> calrt.Device:
    return calrt.open("null")


def eventually(condition: object) -> bool:
    """True as soon as `condition()` holds; False after 20 s."""
    for _ in range(20_000):
        if condition():  # type: ignore[operator]
            return True
        threading.Event().wait(0.001)
    return False


def test_a_buffer_says_what_it_is(null: calrt.Device) -> None:
    with null.alloc(100) as buffer:
        assert (buffer.nbytes, buffer.domain, buffer.views, buffer.closed) == (100, "host", 0, False)
        assert buffer.allocated_nbytes >= 100
        assert repr(buffer) == "<calrt.Buffer 100 bytes host>"
    assert buffer.closed
    assert repr(buffer) == "<calrt.Buffer closed>"
    with pytest.raises(calrt.StateError, match="closed"):
        _ = buffer.nbytes


def test_close_with_a_view_is_refused_and_changes_nothing(null: calrt.Device) -> None:
    buffer = null.alloc(64)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match=r"buffer cannot be closed: 1 view \(1 of buffer\)"):
        buffer.close()
    with pytest.raises(BufferError, match=r"device cannot be closed: 1 view"):
        null.close()
    assert not buffer.closed
    assert not null.closed
    buffer.write(b"still here")
    assert bytes(view[:10]) == b"still here"
    view.release()
    buffer.close()
    buffer.close()
    null.close()
    null.close()


def test_force_and_with_leave_the_memory_to_its_views(null: calrt.Device) -> None:
    buffer = null.alloc(8)
    buffer.write(b"8 bytes!")
    forced = memoryview(buffer)
    buffer.close(force=True)
    with null.alloc(8) as other:
        other.write(b"8 other!")
        left = memoryview(other)
    null.close(force=True)
    del buffer, other, null
    gc.collect()
    assert bytes(forced) == b"8 bytes!"
    assert bytes(left) == b"8 other!"
    left[0] = 7
    assert left[0] == 7


def test_a_view_through_a_view_counts_once(null: calrt.Device) -> None:
    buffer = null.alloc(64)
    view = memoryview(buffer)
    part, array = view[8:16], np.asarray(view)
    assert buffer.views == 1
    del view
    assert buffer.views == 1
    part.release()
    del array, part
    assert buffer.views == 0


def test_wrong_sizes_are_named(null: calrt.Device) -> None:
    for arguments in ({"nbytes": 0}, {"nbytes": 1 << 49}, {"align": 3}, {"align": 0}, {"domain": "device"}):
        with pytest.raises((calrt.InvalidArgumentError, calrt.UnsupportedError)):
            null.alloc(**{"nbytes": 8, **arguments})  # type: ignore[arg-type]
    for count in (0, 65_537):
        with pytest.raises(calrt.InvalidArgumentError, match=f"count={count} is outside 1..65536"):
            null.pool(8, count)


def test_a_transfer_that_stops_half_way_is_a_fault() -> None:
    with calrt.open("null", layers="fault:buffer_transfer short=24 nth=2") as device:
        buffer = device.alloc(64)
        buffer.write(bytes(range(64)))
        with pytest.raises(calrt.ExecutionError, match=r"moved 40 of 64 bytes at 0.*read it again") as caught:
            buffer.read_into(bytearray(64))
        assert caught.value.code is calrt.Status.TRANSFER_FAULT
        back = bytearray(64)
        buffer.read_into(back)
        assert back == bytes(range(64))


def test_a_lost_job_quarantines_its_lease_until_it_is_answered(null_package: Path) -> None:
    # The first job is never answered within its deadline; its answer comes late.
    with calrt.open("null", layers="fault:completion delay_ms=1000 nth=1") as device:
        model = device.load(null_package, lanes=2, cells=64)
        graph = model.graphs["decode_b1"]
        pool = device.pool(int(np.prod(graph.outputs["logits"]["shape"])) * 4, 1, align=64)
        lane = model.kv.reserve(8)
        context = graph.context(lanes=[lane])
        with pool.acquire() as lease:
            context[0].bind("logits", lease)
        context[0].inputs["tokens"].numpy()[:] = 1
        job = context[0].submit(deadline=0.1)
        assert pool.stats()["in_flight"] == 1
        with pytest.raises(calrt.ExecutionError, match="lost"):
            job.wait()
        assert pool.stats()["quarantined"] == 1
        del job
        context.close()
        with pytest.raises(calrt.CapacityError, match="0 leased, 0 in flight, 1 quarantined"):
            pool.acquire(timeout=0)
        del context

        def given_back() -> bool:
            model.kv.reserve(1, timeout=10).release()  # a model looks after its jobs when it is used
            return pool.stats()["free"] == 1

        assert eventually(given_back)
        pool.acquire(timeout=0).close()
        model.close()


def test_a_lease_goes_back_and_is_lent_again(null: calrt.Device) -> None:
    pool = null.pool(1024, 2)
    states = ("capacity", "free", "leased", "in_flight", "quarantined", "waiting")
    assert tuple(pool.stats()) == states
    assert tuple(pool.stats().values()) == (2, 2, 0, 0, 0, 0)
    with pool.acquire() as first:
        address = np.frombuffer(memoryview(first), np.uint8).ctypes.data
        with pool.acquire(timeout=0) as second:
            assert np.frombuffer(memoryview(second), np.uint8).ctypes.data != address
            with pytest.raises(calrt.CapacityError, match=r"2 buffers of 1024 bytes .*2 leased") as caught:
                pool.acquire(timeout=0)
            assert caught.value.code is calrt.Status.BUFFER_POOL_EXHAUSTED
    assert repr(pool) == "<calrt.BufferPool 2 of 2 free, 1024 bytes each, host>"
    lent = [pool.acquire(timeout=0) for _ in range(2)]
    assert address in [np.frombuffer(memoryview(each), np.uint8).ctypes.data for each in lent]
    del lent  # garbage collection gives them back too
    gc.collect()
    assert pool.stats()["free"] == 2


def test_a_view_keeps_a_lease_from_being_lent_again(null: calrt.Device) -> None:
    with null.pool(16, 1) as pool:
        with pool.acquire() as lease:
            lease.write(b"sixteen letters!")
            view = memoryview(lease)
        assert pool.stats()["free"] == 0
        with pytest.raises(calrt.CapacityError):
            pool.acquire(timeout=0)
        with pytest.raises(BufferError, match=r"buffer pool cannot be closed: 1 view \(1 of pool buffer\)"):
            pool.close()
        assert bytes(view) == b"sixteen letters!"
        view.release()
        pool.acquire(timeout=0).close()


def test_waits_are_in_turn_and_end_at_their_deadlines(null: calrt.Device) -> None:
    pool = null.pool(8, 1)
    lease = pool.acquire()
    order: list[int] = []

    def wait(i: int) -> None:
        with pool.acquire(timeout=60):
            order.append(i)

    with ThreadPoolExecutor(8) as threads:
        waits = []
        for i in range(7):
            waits.append(threads.submit(wait, i))
            assert eventually(lambda i=i: pool.stats()["waiting"] == i + 1)
        with pytest.raises(calrt.CapacityError, match="8 wait"):
            pool.acquire(timeout=0.1)  # more than one slice: the place is kept meanwhile
        lease.close()
        for each in waits:
            each.result(60)
    assert order == list(range(7))
    assert pool.stats()["free"] == 1


def test_close_wakes_all_who_wait(null: calrt.Device) -> None:
    pool = null.pool(8, 1)
    lease = pool.acquire()
    with ThreadPoolExecutor(4) as threads:
        waits = [threads.submit(pool.acquire, 60) for _ in range(4)]
        assert eventually(lambda: pool.stats()["waiting"] == 4)
        pool.close()
        for each in waits:
            with pytest.raises(calrt.StateError, match="closed"):
                each.result(60)
    pool.close()
    lease.write(b"x")  # a lease outlives its pool
    lease.close()


def test_ctrl_c_ends_a_wait_and_loses_nothing() -> None:
    code = """
import os, signal, threading, calrt
signal.signal(signal.SIGINT, signal.default_int_handler)
pool = calrt.open("null").pool(8, 1)
lease = pool.acquire()
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    pool.acquire(timeout=60)
except KeyboardInterrupt:
    print("interrupted", pool.stats()["waiting"])
lease.close()
print(pool.acquire(timeout=0).nbytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted 0\n8\n", done.stderr


def test_a_slot_may_be_bound_to_a_buffer_of_a_pool(null: calrt.Device, null_package: Path) -> None:
    with null.load(null_package, lanes=1, cells=64) as model:
        graph = model.graphs["decode_b1"]
        need = int(np.prod(graph.outputs["logits"]["shape"])) * 4
        pool = null.pool(need, 1, align=64)
        lane = model.kv.reserve(8)
        with graph.context(lanes=[lane]) as context, pool.acquire() as lease:
            context[0].bind("logits", lease)
            lease.write(np.full(need // 4, 2.5, np.float32))
            context[0].inputs["tokens"].numpy()[:] = 1
            context[0].submit().wait()  # null writes nothing
            assert (context[0].outputs["logits"].to_f32() == 2.5).all()
            small = null.alloc(8)
            with pytest.raises(calrt.InvalidArgumentError, match="bind logits: the buffer has 8 bytes"):
                context[0].bind("logits", small)
            with pytest.raises(calrt.InvalidArgumentError, match="role='moon' is the name of no role"):
                context[0].bind("moon", lease)
        del context
        gc.collect()
        assert eventually(lambda: pool.stats()["free"] == 1)


def test_threads_share_a_pool_without_sharing_a_buffer(null: calrt.Device) -> None:
    pool = null.pool(64, 3)

    def work(seed: int) -> int:
        wrong = 0
        for i in range(200):
            with pool.acquire(timeout=60) as lease:
                lease.write(bytes([seed]) * 64)
                if i % 5 == 0:
                    with memoryview(lease) as view:
                        wrong += bytes(view) != bytes([seed]) * 64
                back = bytearray(64)
                lease.read_into(back)
                wrong += back != bytes([seed]) * 64
        return wrong

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 0
    assert pool.stats()["free"] == 3


def test_closing_a_device_ends_the_waits_for_its_pools_at_once() -> None:
    with calrt.open("null") as device:
        pool = device.pool(64, 1)
        held = pool.acquire()
        idle = device.pool(64, 1)
        idle.acquire().close()
        said: list[calrt.CalrtError] = []

        def wait() -> None:
            try:
                pool.acquire(timeout=600)
            except calrt.CalrtError as error:
                said.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        while pool.stats()["waiting"] == 0:
            time.sleep(0.001)
        device.close()
        waiter.join(60)
        assert not waiter.is_alive()
        assert "device 'null' is closed" in str(said[0])
        assert isinstance(said[0], calrt.StateError)
        for each in (pool, idle):  # a buffer that is free is lent no more either
            with pytest.raises(calrt.StateError, match="device 'null' is closed"):
                each.acquire(timeout=0)
        held.write(b"x")  # a loan stays valid
        held.close()
