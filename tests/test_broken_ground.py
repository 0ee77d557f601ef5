# SPDX-License-Identifier: Apache-2.0
"""What calrt stands on is broken: libraries cut off, objects without content, drivers that only err."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import weakref
from pathlib import Path

import pytest

import calrt
from fresh_python import BROKEN, run


def test_a_driver_library_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    with calrt.open("null") as device:
        whole = Path(device.info.driver_path).read_bytes()
    for size in [0, 1, 63, 64, 500, *range(1000, len(whole), len(whole) // 12)]:
        (tmp_path / f"libcald_cut{size}.so").write_bytes(whole[:size])
    code = """
import pathlib, sys
import calrt
for path in sorted(pathlib.Path(sys.argv[1]).glob("libcald_cut*.so")):
    try:
        calrt.open(str(path)).close()
    except calrt.InvalidArgumentError as error:
        assert "cannot be loaded" in str(error), error
    else:
        print("opened", path.name)
"""
    opened = run(code, tmp_path).stdout.split()
    assert all(
        int(name[11:-3]) > len(whole) * 3 // 4 for name in opened[1::2]
    )  # what is lacking is not mapped


@pytest.mark.parametrize("name", ["Buffer", "Device", "Graph", "Job", "Kv", "Lane", "Model", "Tensor"])
def test_no_class_without_a_constructor_can_be_made_empty(name: str) -> None:
    code = f"""
from calrt import _core
try:
    empty = _core.{name}.__new__(_core.{name})
except TypeError:
    print("refused")
else:
    print(repr(empty), dir(empty), [getattr(empty, name, None) for name in dir(empty)])
"""
    assert run(code).stdout == "refused\n"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_a_driver_that_only_errs_after_its_completion_keeps_nothing(null_package: Path) -> None:
    before = descriptors()
    for _ in range(3):
        device = calrt.open("null", layers="fault:job_wait status=DEVICE_LOST")
        with device, device.load(null_package, lanes=1, cells=64) as model, model.kv.reserve(4) as lane:
            model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane]).wait(10)
        del device, model, lane
    for _ in range(200):  # what a job held is given back on a thread of the runtime's
        gc.collect()
        if descriptors() <= before:
            break
        time.sleep(0.05)
    assert descriptors() <= before


def test_a_loop_closed_under_an_await_is_collected(null_package: Path) -> None:
    with (
        calrt.open("null", layers="fault:completion delay_ms=300 thread") as device,
        device.load(null_package, lanes=1, cells=64) as model,
        model.kv.reserve(4) as lane,
    ):
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])

        async def waits() -> None:
            await job

        loop = asyncio.new_event_loop()
        gone = weakref.ref(loop)
        task = loop.create_task(waits())
        loop.run_until_complete(asyncio.sleep(0))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        del loop, task
        gc.collect()
        assert gone() is None
        # The leaving closes the model, which cancels what nobody waits for any more.


def test_what_a_block_raised_is_not_hidden_by_a_job_that_does_not_end(null_package: Path) -> None:
    code = """
try:
    with model:
        submit()
        raise KeyError("mine")
except KeyError:
    print("mine")
try:
    other = device.load(sys.argv[1], lanes=1, cells=64)
    with other.kv.reserve(4) as held:
        other.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[held])
        other.close()
except calrt.WaitTimeoutError as error:
    print("the model is closed all the same" in str(error))
os._exit(0)
"""
    assert run(BROKEN + code, null_package, "completion drop").stdout.split() == ["mine", "True"]
