# SPDX-License-Identifier: Apache-2.0
"""The ends of processes and forks, each in a process of its own: no hang, no abort, the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from fresh_python import BROKEN, run

# ---- the end of the process, with a job in flight ------------------------------------------------

# code after submit() of a job, the exit code, and whether stderr stays empty
ENDINGS = {
    "fall-through": ("", 0, True),
    "sys.exit": ("sys.exit(3)", 3, True),
    "unhandled exception": ("raise RuntimeError('mine')", 1, False),
    "os._exit": ("print('seen', flush=True); os._exit(5)", 5, True),
    "thread in job.wait": ("in_thread(job.wait); time.sleep(0.2)", 0, True),
    "threads in job.wait": ("[in_thread(job.wait) for _ in range(8)]; time.sleep(0.2)", 0, True),
    "sys.exit, thread in wait": ("in_thread(job.wait); time.sleep(0.2); sys.exit(4)", 4, True),
    "exception, thread in wait": ("in_thread(job.wait); time.sleep(0.2); raise OSError('x')", 1, False),
    "thread in an await loop": (
        "async def work():\n    await job\nin_thread(asyncio.run, work()); time.sleep(0.2)",
        0,
        True,
    ),
    "await in the main thread, left by an exception": (
        """
async def waits():
    await job
async def work():
    await asyncio.wait_for(asyncio.shield(waits()), 0.1)
try:
    asyncio.run(work())
except asyncio.TimeoutError:
    print('late')""",
        0,
        True,
    ),
    "an exit hook that fails": ("atexit.register(lambda: 1 / 0)", 0, False),
    "everything in one cycle": (
        """all = [device, model, graph, lane, job, submit]; all.append(all)
del device, model, graph, lane, job, submit""",
        0,
        True,
    ),
    "closed before": ("model.close(); device.close()", 0, True),
}


@pytest.mark.parametrize("rules", ["completion hold", "completion drop", "completion delay_ms=300 thread"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_may_end_with_a_job_in_flight(null_package: Path, ending: str, rules: str) -> None:
    code, expect, quiet = ENDINGS[ending]
    if "closed" in ending and "drop" in rules:
        code = f"try:\n    model.close()\nexcept calrt.WaitTimeoutError:\n    {code}"
    # Without a deadline of its own a job that never ends keeps the process for 5 s: once is enough.
    deadline = "" if ending == "fall-through" else "deadline=1.5"
    begin = f"job = submit({deadline})\n"
    lost = "drop" in rules and deadline != ""
    done = run(BROKEN + begin + code, null_package, rules, expect=expect, quiet=quiet and not lost)
    if quiet and lost:  # the one thing that may be said
        assert all("lost: no answer by its deadline" in line for line in done.stderr.splitlines())
    if expect == 1:
        assert done.stderr.count("Traceback") == 1


def test_a_signal_may_end_a_process_that_waits(null_package: Path) -> None:
    code = """
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
submit().wait()
"""
    run(BROKEN + code, null_package, "completion hold", expect=-15)


CALLBACKS = {
    "sleeps": "time.sleep(60)",
    "waits for a job": "other.wait()",
    "waits for a lane": "full.kv.reserve(4, timeout=60)",
    "ends the main thread": "signal.raise_signal(signal.SIGTERM)",
    "raises SystemExit": "raise SystemExit(9)",
}


@pytest.mark.parametrize("how", ["", "sys.exit(3)"])
@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_process_may_end_inside_a_done_callback(null_package: Path, callback: str, how: str) -> None:
    code = f"""
other = submit(lane=model.kv.reserve(8))
full = device.load(sys.argv[1], lanes=1, cells=64)
held = full.kv.reserve(4)
begun = threading.Event()
def work(job):
    begun.set()
    {CALLBACKS[callback]}
if "SystemExit" in {callback!r}:
    import logging
    logging.getLogger("calrt.callbacks").addHandler(logging.NullHandler())
    logging.getLogger("calrt.callbacks").propagate = False
job = full.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[held])
job.add_done_callback(work)
assert begun.wait(30)
time.sleep(0.1)
{how}
"""
    expect = -15 if "main thread" in callback else 3 if how else 0
    run(BROKEN + code, null_package, "completion hold nth=1", expect=expect)


JOINED = {
    "job.wait": "job.wait()",
    "kv.reserve": "other.kv.reserve(4, timeout=60)",
    "await": "asyncio.run(waits())",
}


@pytest.mark.parametrize("work", JOINED)
def test_an_older_exit_hook_may_join_a_thread_inside_calrt(null_package: Path, work: str) -> None:
    """Hooks run youngest first, so this one runs when calrt's has been: its threads are outside by then."""
    code = f"""
import atexit
threads = []
@atexit.register
def join():
    threads[0].join()
    print("joined")
{BROKEN}
async def waits():
    await job
other = device.load(sys.argv[1], lanes=1, cells=64)
held = other.kv.reserve(4)
job = submit()
def work():
    try:
        {JOINED[work]}
    except calrt.CalrtError as error:
        print(error.code.name)
threads.append(in_thread(work))
time.sleep(0.3)
"""
    done = run(code, null_package, "completion hold")
    said = done.stdout.split()
    assert said[-1] == "joined"
    assert said[0] in ("CANCELLED", "MODEL_UNLOADED", "INVALID_STATE")


# ---- fork ----------------------------------------------------------------------------------------


def test_a_forked_child_recovers_while_its_parent_does(null_package: Path) -> None:
    """The child inherits the lock of the parent's recovery, and not the thread that would let go of it."""
    code = """
from calrt import recovery
def failure(of):
    try:
        of.health()
    except calrt.DeviceLostError as error:
        return error
thread = in_thread(failure(device).recover)
while not recovery._locks["null"].locked():
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(60)
    with calrt.open("null", layers="fault:device_health status=DEVICE_LOST") as own:
        with failure(own).recover() as anew:
            print(anew.spec, "again", flush=True)
    sys.exit(0)
assert recovery._locks["null"].locked()  # else this test has tested nothing
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
print(device.closed)
"""
    rules = "device_health status=DEVICE_LOST / device_open delay_ms=1500"
    assert run(BROKEN + code, null_package, rules).stdout == "null again\nTrue\n"


@pytest.mark.parametrize("held", [True, False])
def test_a_forked_child_works_on_a_device_of_its_own(null_package: Path, held: bool) -> None:
    """With or without a job in flight at the fork; the parent goes on."""
    code = f"""
job = submit()
if not {held}:
    job.wait()
lane2 = model.kv.reserve(4)
child = os.fork()
if child == 0:
    for use in (submit, lambda: job.wait(timeout=5), lambda: device.info, lambda: device.load(sys.argv[1]),
                lambda: model.kv.reserve(1), lambda: device.alloc(64)):
        try:
            use()
        except calrt.StateError:
            continue
        except calrt.CalrtError as error:
            print("otherwise:", error, flush=True)
            continue
        if use.__code__.co_names != ("wait",):
            print("nothing refused", use.__code__.co_names, flush=True)
    with calrt.open("null") as own, own.load(sys.argv[1], lanes=1, cells=64) as again:
        with again.kv.reserve(4) as mine:
            again.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[mine], deadline=30).wait()
    model.close()
    device.close()
    print("child done", flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
if {held}:
    job.cancel()
try:
    job.wait()
except calrt.CancelledJobError:
    pass
print(submit(lane=lane2).cancel() if {held} else submit(lane=lane2).wait().state)
"""
    rules = "completion hold" if held else ""
    done = run(BROKEN + code, null_package, rules)
    assert done.stdout == ("child done\nNone\n" if held else "child done\ndone\n")


def test_a_forked_child_may_exit_in_every_way(null_package: Path) -> None:
    code = """
job = submit()
endings = ((lambda: sys.exit(0), 0), (lambda: os._exit(7), 7), (lambda: 1 / 0, 1), (lambda: None, 0))
for end, expect in endings:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        end()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expect
"""
    run(BROKEN + code, null_package, "completion hold")


def test_a_fork_of_a_process_whose_threads_wait(null_package: Path) -> None:
    code = """
threads = [in_thread(submit(lane=model.kv.reserve(4)).wait) for _ in range(3)]
full = in_thread(lambda: model.kv.reserve(4, timeout=50))
time.sleep(0.2)
for _ in range(5):
    child = os.fork()
    if child == 0:
        del model, graph, lane, device, threads, full
        gc.collect()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run(BROKEN + code, null_package, "completion hold")
