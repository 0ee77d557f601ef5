# SPDX-License-Identifier: Apache-2.0
"""Closing, dropping and interrupting in every order, each in a process of its own: no hang, no abort."""

from __future__ import annotations

from pathlib import Path

import pytest

from fresh_python import BROKEN, run

# ---- closing twice, closing in any order, using what is closed -----------------------------------


def test_everything_may_be_closed_twice(null_package: Path) -> None:
    code = """
context = graph.context(slots=2)
sequence = model.sequence(4)
buffer = device.alloc(64)
job = submit().wait()
for _ in range(3):
    context.close(); sequence.close(); lane.release(); buffer.close(); job.cancel()
    model.close(); device.close()
with device, model:
    pass
print("closed")
"""
    assert run(BROKEN + code, null_package, "").stdout == "closed\n"


@pytest.mark.parametrize("first", [0, 1])
def test_two_models_close_in_either_order_then_the_device_opens_again(null_package: Path, first: int) -> None:
    code = f"""
models = [model, device.load(sys.argv[1], lanes=1, cells=64)]
def one_job(model):
    with model.kv.reserve(4) as lane:
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
        return job.wait().state
lane.release()
models[{first}].close()
assert one_job(models[{1 - first}]) == "done"
del graph, submit
models[{1 - first}].close()
device.close()
del model, models, lane
gc.collect()
device = calrt.open("null", layers="fault:" + sys.argv[2])
with device.load(sys.argv[1], lanes=1, cells=64) as model:
    print(one_job(model))
"""
    assert run(BROKEN + code, null_package, "").stdout == "done\n"


def test_closing_a_device_ends_the_waits_for_its_lanes(null_package: Path) -> None:
    code = """
held = [model.kv.reserve(4) for _ in range(3)]
said = []
def wait():
    try:
        model.kv.reserve(4, timeout=80)
    except calrt.CalrtError as error:
        said.append((type(error).__name__, error.code.name))
threads = [in_thread(wait) for _ in range(4)]
time.sleep(0.3)
device.close()
for thread in threads:
    thread.join()
print(set(said), len(said))
"""
    assert run(BROKEN + code, null_package, "").stdout == "{('StateError', 'INVALID_STATE')} 4\n"


# ---- threads ---------------------------------------------------------------------------------------


def test_threads_that_python_never_saw(null_package: Path) -> None:
    """Made by pthread_create, they call into calrt and wait there; jobs end on a thread of the driver."""
    code = """
import ctypes
libc = ctypes.CDLL(None)
said = []
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def work(_):
    with model.kv.reserve(4) as lane:
        said.append(submit(lane=lane).wait().state)
    return None
threads = [ctypes.c_ulong() for _ in range(6)]
for thread in threads:
    assert libc.pthread_create(ctypes.byref(thread), None, work, None) == 0
for thread in threads:
    assert libc.pthread_join(thread, None) == 0
print(said)
"""
    done = run(BROKEN + code, null_package, "completion delay_ms=20 thread")
    assert done.stdout == str(["done"] * 6) + "\n"


def test_a_process_may_end_with_a_foreign_thread_inside(null_package: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None)
job = submit()
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def work(_):
    job.wait()
    return None
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, work, None) == 0
time.sleep(0.3)
"""
    run(BROKEN + code, null_package, "completion hold")


def test_a_model_may_be_dropped_while_jobs_end(null_package: Path) -> None:
    """200 times, the job ending on the driver's thread at that moment."""
    code = """
del model, graph, lane, submit
gc.disable()
for turn in range(200):
    model = device.load(sys.argv[1], lanes=1, cells=64)
    lane = model.kv.reserve(4)
    job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
    if turn % 2:
        del job
    del model, lane
print("alive")
"""
    assert run(BROKEN + code, null_package, "completion delay_ms=1 thread").stdout == "alive\n"


def test_a_model_may_be_dropped_under_a_running_callback(null_package: Path) -> None:
    """200 times. Each callback runs exactly once, and none keeps `del` waiting for the GIL it holds."""
    code = """
del model, graph, lane, submit
gc.disable()
called, slow = [], 0.0
for turn in range(200):
    model = device.load(sys.argv[1], lanes=2, cells=64)
    begun = threading.Event()
    def work(job, begun=begun, turn=turn):
        begun.set()
        time.sleep(0.002)
        called.append(turn)
    for _ in range(2):
        lane = model.kv.reserve(4)
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
        job.add_done_callback(work)
    if turn % 3:
        begun.wait(30)
    start = time.monotonic()
    del model, lane, job, work
    slow = max(slow, time.monotonic() - start)
until = time.monotonic() + 60
while len(called) < 400 and time.monotonic() < until:
    time.sleep(0.01)
print(sorted(called) == sorted(list(range(200)) * 2), slow < 5)
"""
    done = run(BROKEN + code, null_package, "completion delay_ms=1 thread")
    assert done.stdout == "True True\n"


@pytest.mark.parametrize("last", ["model.native", "graph", "model.kv.native"])
def test_dropping_the_last_owner_of_a_running_job_lets_others_run(null_package: Path, last: str) -> None:
    """It waits for the job, here until that is lost, and holds up no thread meanwhile."""
    code = f"""
job = submit(deadline=1.0)
kept = {last}
del model, graph, lane, submit, job
gc.collect()
ticks, over = [], False
def tick():
    while not over:
        ticks.append(0)
        time.sleep(0.001)
thread = in_thread(tick)
while not ticks:
    time.sleep(0.001)
before = len(ticks)
del kept
during = len(ticks) - before
over = True
thread.join()
print(during > 2)  # at most one where a thread may change between two lines
"""
    assert run(BROKEN + code, null_package, "completion drop", quiet=False).stdout == "True\n"


def test_a_model_may_be_dropped_by_a_log_handler(null_package: Path) -> None:
    code = """
import logging
models = [model]
class Drops(logging.Handler):
    def emit(self, record):
        models.clear(); gc.collect()
logging.getLogger("calrt").addHandler(Drops())
logging.getLogger("calrt").propagate = False
del model, graph, lane, submit
lost = 0
while lost < 50:
    models.append(device.load(sys.argv[1], lanes=1, cells=64))
    lane, job = models[0].kv.reserve(4), None
    try:
        job = models[0].graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane], deadline=0.02)
        job.wait()
    except calrt.ExecutionError:
        lost += 1
    except calrt.WaitTimeoutError:  # a slow machine: too late to submit
        pass
    del job, lane
    models.clear()
print("alive")
"""
    assert run(BROKEN + code, null_package, "completion delay_ms=60 thread").stdout == "alive\n"


def test_the_last_view_may_be_dropped_in_another_thread(null_package: Path) -> None:
    code = """
import queue
views = queue.Queue(maxsize=16)  # a view holds an output, and the graph has 256 of them
def drop():
    while views.get() is not None:
        pass
threads = [in_thread(drop) for _ in range(4)]
for _ in range(300):
    lane.truncate(0)
    views.put(submit().wait().outputs["logits"].numpy())
views.put(submit().wait().outputs["logits"].numpy())
model.close(force=True); device.close(force=True)
del model, device, graph, lane, submit
for _ in threads:
    views.put(None)
for thread in threads:
    thread.join()
gc.collect()
print("alive")
"""
    assert run(BROKEN + code, null_package, "").stdout == "alive\n"


def test_cycles_are_collected_in_any_order(null_package: Path) -> None:
    """Each object in a cycle of its own, with each other: whichever the collector clears first."""
    code = """
import itertools, weakref
class Node:
    pass
del model, graph, lane, submit
for order in itertools.permutations(range(4)):
    model = device.load(sys.argv[1], lanes=1, cells=64)
    lane = model.kv.reserve(8)
    job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
    things = [model, lane, job, job.wait().outputs["logits"].numpy()]
    nodes = []
    for index in order:
        node = Node()
        node.me, node.thing = node, things[index]
        nodes.append(node)
    for node in nodes:
        node.all = nodes
    seen = weakref.ref(model)
    del model, lane, job, things, nodes, node
    gc.collect()
    assert seen() is None
print("alive")
"""
    assert run(BROKEN + code, null_package, "completion delay_ms=1 thread").stdout == "alive\n"


# ---- signals ---------------------------------------------------------------------------------------

INTERRUPTED = {
    "job.wait": ("submit().wait()", "completion hold"),
    "job.wait with a timeout": ("submit().wait(timeout=80)", "completion hold"),
    "await": ("async def work():\n        await submit()\n    asyncio.run(work())", "completion hold"),
    "kv.reserve": ("held = [model.kv.reserve(4) for _ in range(3)]; model.kv.reserve(4, timeout=80)", ""),
    "pool.acquire": ("pool = device.pool(64, count=1); held = pool.acquire(); pool.acquire(timeout=80)", ""),
    "load": ("device.load(sys.argv[1], progress=lambda *_: time.sleep(2))", ""),
    "recover": (
        """held = [model.kv.reserve(4) for _ in range(3)]
    try:
        model.kv.try_reserve(4)
    except calrt.CalrtError as error:
        error.recover(timeout=80)""",
        "",
    ),
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_ctrl_c_ends_every_wait(null_package: Path, where: str) -> None:
    work, rules = INTERRUPTED[where]
    code = f"""
interrupt_in(0.3)
try:
    {work}
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(BROKEN + code, null_package, rules).stdout == "interrupted\n"


def test_a_job_is_none_the_worse_for_an_interrupted_wait(null_package: Path) -> None:
    code = """
job = submit()
interrupt_in(0.1)
try:
    job.wait()
except KeyboardInterrupt:
    print(job.wait().state)
"""
    assert run(BROKEN + code, null_package, "completion delay_ms=600 thread").stdout == "done\n"


# ---- interpreters that calrt does not run in -----------------------------------------------------


@pytest.mark.parametrize("isolated", [True, False])
def test_sub_interpreters_are_refused_with_one_clear_line(isolated: bool) -> None:
    code = f"""
try:
    import _interpreters as interpreters
    make = lambda: interpreters.create("isolated" if {isolated} else "legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    make = lambda: interpreters.create(isolated={isolated})
import os
out = "import os\\ntry: import calrt\\nexcept ImportError as error: os.write(1, str(error).encode())"
interpreters.run_string(make(), out)
import calrt
print("\\nmain:", calrt.isa())
"""
    done = run(code, quiet=False)
    refusal, main, *_ = done.stdout.split("\n")
    assert "interpreter" in refusal
    assert "calrt" in refusal
    assert main.startswith("main: ")


def test_a_free_threaded_python_is_refused_with_one_clear_line() -> None:
    code = "import sys; sys.abiflags = 't'\nimport calrt"
    done = run(code, expect=1, quiet=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: calrt needs a CPython with the GIL: free-threaded builds")
    caught = "import sys; sys.abiflags = 't'\ntry:\n    import calrt\nexcept ImportError:\n    pass\n"
    assert (
        run(caught + "print('numpy' in sys.modules, 'calrt._core' in sys.modules)").stdout == "False False\n"
    )
