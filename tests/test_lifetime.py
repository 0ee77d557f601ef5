# SPDX-License-Identifier: Apache-2.0
"""What outlives what: every order of closing and deleting is fine, and so is leaving everything open."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import calrt


def one_job(model: calrt.Model, token: int = 1) -> calrt.Job:
    with model.kv.reserve(4) as lane:
        return model.graphs["decode_b1"].submit(tokens=[token], positions=[0], lanes=[lane]).wait()


def test_views_keep_their_values_whatever_happens(tiny_package: Path) -> None:
    device = calrt.open("cpu", threads=1)
    model = device.load(tiny_package, lanes=2, cells=64)
    job = one_job(model, 5)
    view = job.outputs["logits"].numpy()
    kept = view.copy()
    for token in range(20):  # the buffers of a held output are not used again
        one_job(model, token)
    assert (view == kept).all()
    model.close(force=True)
    device.close(force=True)
    del job, model, device
    gc.collect()
    with calrt.open("cpu", threads=1) as device, device.load(tiny_package, lanes=2, cells=64) as model:
        one_job(model, 7)
    assert (view == kept).all()


def test_hoarded_outputs_are_bounded_and_said_so(model: calrt.Model) -> None:
    held = [one_job(model).outputs["logits"] for _ in range(256)]
    with pytest.raises(calrt.CapacityError, match="256 outputs of graph decode_b1 are still held"):
        one_job(model)
    held.clear()
    one_job(model)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_deletion(tiny_package: Path, order: tuple[int, ...]) -> None:
    device = calrt.open("cpu", threads=1)
    model = device.load(tiny_package, lanes=1, cells=64)
    job = one_job(model)
    things: list[object] = [device, model, job, job.outputs["logits"].numpy()]
    del device, model, job
    for index in order:
        things[index] = None
        gc.collect()


def test_two_models_of_one_device_close_in_both_orders(tiny_package: Path) -> None:
    for first in (0, 1):
        with calrt.open("cpu", threads=1) as device:
            models = [device.load(tiny_package, lanes=1, cells=64) for _ in range(2)]
            models[first].close()
            one_job(models[1 - first])
            models[1 - first].close()


def test_close_is_idempotent_and_later_work_is_a_state_error(model: calrt.Model) -> None:
    graph = model.graphs["decode_b1"]
    lane = model.kv.reserve(4)
    model.close()
    model.close()
    assert model.closed
    with pytest.raises(calrt.StateError) as caught:
        graph.submit(tokens=[1], positions=[0], lanes=[lane])
    assert caught.value.code is calrt.Status.MODEL_UNLOADED
    with pytest.raises(calrt.StateError):
        model.kv.reserve(4)
    lane.release()


def test_close_ends_the_waits_for_a_lane(tiny_package: Path, device: calrt.Device) -> None:
    model = device.load(tiny_package, lanes=1, cells=64)
    lane = model.kv.reserve(4)
    waiting = threading.Event()

    def wait() -> object:
        waiting.set()
        return model.kv.reserve(4, timeout=40)  # KvTimeoutError if nobody wakes it

    with ThreadPoolExecutor() as pool:
        waits = [pool.submit(wait) for _ in range(3)]
        assert waiting.wait(10)
        model.close()
        for answer in waits:
            with pytest.raises(calrt.StateError) as caught:
                answer.result()
            assert caught.value.code is calrt.Status.MODEL_UNLOADED
    lane.release()


def test_a_model_on_a_closed_device_says_so(tiny_package: Path) -> None:
    device = calrt.open("cpu", threads=1)
    model = device.load(tiny_package, lanes=1, cells=64)
    device.close()
    with pytest.raises(calrt.StateError, match="closed"):
        one_job(model)
    with pytest.raises(calrt.StateError, match="closed"):
        device.load(tiny_package, lanes=1, cells=64)
    model.close()


def test_closing_with_a_job_in_flight(tiny_package: Path) -> None:
    for _ in range(20):
        with calrt.open("cpu", threads=1) as device:
            model = device.load(tiny_package, lanes=1, cells=128)
            graph = max((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)
            lane = model.kv.reserve(64)
            job = graph.submit(tokens=[1] * 64, positions=range(64), lanes=[lane])
            model.close()
            assert job.state in ("done", "cancelled", "failed")


def test_closing_waits_for_a_job_that_heeds_no_cancel(null_package: Path) -> None:
    """Until it ends, here by its deadline; WaitTimeoutError would mean that nobody waited."""
    with calrt.open("null", layers="fault:completion drop") as device:
        model = device.load(null_package, lanes=1, cells=64)
        lane = model.kv.reserve(4)
        graph = model.graphs["decode_b1"]
        job = graph.submit(tokens=[1], positions=[0], lanes=[lane], deadline=0.5)
        model.close()
        assert job.state == "lost"


def test_dropping_a_job_neither_waits_nor_cancels(model: calrt.Model) -> None:
    lane = model.kv.reserve(100)
    graph = min((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)
    graph.submit(tokens=[1, 2, 3], positions=range(3), lanes=[lane])
    for _ in range(3000):
        if model.kv.snapshot(lane.index)["job_seq"] == 0:
            break
        model.kv.check_integrity()
    else:
        import time

        time.sleep(1)
    assert lane.length == 3


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


LOADED = """
import sys, calrt, numpy
device = calrt.open("cpu", threads=2)
model = device.load(sys.argv[1], lanes=2, cells=128)
lane = model.kv.reserve(100)
graph = max((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)
job = graph.submit(tokens=[1] * 64, positions=range(64), lanes=[lane])
"""

ENDINGS = {
    "with a job in flight": "",
    "with views alive": "view = job.wait().outputs['logits'].numpy(); print(view.shape)",
    "with a stream half read": "it = model.generate([1], max_tokens=50, stream=True); next(it)",
    "with a runner at work": (
        "r = calrt._core.StepRunner(model.native)\n"
        "r.start(1, model.kv.reserve(100), [1, 2], max_tokens=90, sampling={'temperature': 0.0})"
    ),
    "in a reference cycle": "a = [model, job, lane]; a.append(a); del model, job, lane, device",
    "by sys.exit": "sys.exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_may_end(tiny_package: Path, ending: str) -> None:
    done = run(LOADED + ENDINGS[ending], str(tiny_package))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_ctrl_c_ends_a_wait(tiny_package: Path) -> None:
    code = """
import signal, sys, threading, calrt, os
device = calrt.open("cpu", threads=1)
model = device.load(sys.argv[1], lanes=1, cells=64)
lane = model.kv.reserve(10)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has its children ignore it
try:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    model.kv.reserve(10, timeout=30)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run(code, str(tiny_package))
    assert done.stdout == "interrupted\n", done.stderr


def test_memory_of_dropped_outputs_is_used_again(model: calrt.Model) -> None:
    addresses = set()
    for _ in range(50):
        addresses.add(one_job(model).outputs["logits"].numpy().ctypes.data)
    assert len(addresses) <= 4
    assert np.isfinite(one_job(model).outputs["logits"].to_f32()).all()


def test_a_device_closed_while_it_loads_is_a_state_error(tiny_package: Path) -> None:
    code = """
import sys, calrt
device = calrt.open("cpu", threads=1)
try:
    device.load(sys.argv[1], lanes=1, cells=64, progress=lambda *_: device.close())
except calrt.StateError as error:
    print("refused:", error)
"""
    done = run(code, str(tiny_package))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused:")
    assert "closed" in done.stdout


THREADS = {
    "kv.reserve": "say(); model.kv.reserve(10, timeout=60)",
    "job.wait": (
        "graph = max((g for g in model.graphs.values() if g.kind == 'prefill'), key=lambda g: g.chunk)\n"
        "    say()\n"
        "    while True:\n"
        "        graph.submit(tokens=[1] * 64, positions=range(64), lanes=[lane]).wait()\n"
        "        lane.truncate(0)"
    ),
    "generate": "while True: list(other.generate([1], max_tokens=50, stream=True)); say()",
    "load": "device.load(sys.argv[1], lanes=1, cells=64, progress=lambda *_: (say(), time.sleep(0.01)))",
}


@pytest.mark.parametrize("work", THREADS)
def test_a_process_may_end_with_a_daemon_thread_in_native_code(tiny_package: Path, work: str) -> None:
    code = f"""
import sys, threading, time, calrt
device = calrt.open("cpu", threads=1)
model = device.load(sys.argv[1], lanes=1, cells=128)
other = device.load(sys.argv[1], lanes=1, cells=128)
lane = model.kv.reserve(100)
begun = threading.Event()
say = begun.set
def work():
    {THREADS[work]}
for _ in range({1 if work == "job.wait" else 3}):
    threading.Thread(target=work, daemon=True).start()
assert begun.wait(30)
time.sleep(float(sys.argv[2]))
"""
    for delay in ("0", "0.05", "0.12"):
        done = run(code, str(tiny_package), delay)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def test_a_forked_child_leaves_the_devices_of_its_parent_alone(tiny_package: Path) -> None:
    code = """
import os, sys, calrt
device = calrt.open("cpu", threads=2)
model = device.load(sys.argv[1], lanes=1, cells=128)
lane = model.kv.reserve(100)
graph = model.graphs["decode_b1"]
list_of = lambda: graph.submit(tokens=[1], positions=[lane.length], lanes=[lane]).wait()
list_of()
child = os.fork()
if child == 0:
    for use in (list_of, lambda: device.info, lambda: model.kv.reserve(1)):
        try:
            use()
        except calrt.StateError as error:
            print(error, flush=True)
    with calrt.open("cpu", threads=1) as own, own.load(sys.argv[1], lanes=1, cells=64) as again:
        again.kv.reserve(4).release()
    model.close()
    del graph, lane, model
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
list_of()
"""
    done = run(code.replace("list_of", "one_job"), str(tiny_package))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("open it in the child") == 3
