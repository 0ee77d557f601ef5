# SPDX-License-Identifier: Apache-2.0
"""An exclusive device belongs to one process at a time; real processes say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import calrt

HOLD = """
import sys, calrt
device = calrt.open("null", exclusive=True)
print("held", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        device.close()
        del device  # the hardware goes with the last owner
        print("closed", flush=True)
"""


class Holder:
    """A process that has the device open until it is told otherwise."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.expect("held")
        except BaseException:
            self.end()
            raise

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == word + "\n"

    def close_device(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("close\n")
        self.process.stdin.flush()
        self.expect("closed")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> None:
        """Ends it, if it has not ended, and what leads to it."""
        self.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALRT_LOCK_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder() -> Iterator[Holder]:
    made = Holder()
    yield made
    made.end()


def test_a_held_device_names_its_holder(holder: Holder) -> None:
    with pytest.raises(calrt.DeviceError, match=f"held by process {holder.process.pid}\\b") as caught:
        calrt.open("null", exclusive=True)
    assert caught.value.code == calrt.Status.DEVICE_UNHEALTHY
    assert caught.value.retry == "wait"


def test_who_does_not_ask_is_not_kept_out(holder: Holder) -> None:
    with calrt.open("null") as device:
        assert not device.info.exclusive


def test_what_the_device_says_counts_unless_overruled(holder: Holder) -> None:
    says = "fault:device_info exclusive=1"
    with pytest.raises(calrt.DeviceError, match="held by process"):
        calrt.open("null", layers=says)
    with calrt.open("null", layers=says, exclusive=False) as device:
        assert device.info.exclusive
    with calrt.open("null", layers="fault:device_info exclusive=1 id=other"):
        pass  # another device


def test_closing_the_device_frees_it(holder: Holder) -> None:
    holder.close_device()
    with calrt.open("null", exclusive=True):
        pass


def test_sigkill_frees_it(holder: Holder) -> None:
    holder.kill()
    with calrt.open("null", exclusive=True):
        pass


def test_a_process_may_open_it_again(lock_folder: Path) -> None:
    def another_process() -> str:
        code = "import calrt\ntry:\n calrt.open('null', exclusive=True)\n print('free')\n"
        code += "except calrt.DeviceError as e:\n print(e.message)"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()

    first = calrt.open("null", exclusive=True)
    second = calrt.open("null", exclusive=True)
    first.close()
    del first
    assert f"held by process {os.getpid()}" in another_process()
    second.close()
    del second
    assert another_process() == "free"
    assert [path.name for path in lock_folder.iterdir()] == ["calrt-null-null%3a0.lock"]


def test_a_forked_child_does_not_have_it() -> None:
    code = """
import os, sys, calrt
device = calrt.open("null", exclusive=True)
parent = os.getpid()
child = os.fork()
if child == 0:
    try:
        calrt.open("null", exclusive=True)
    except calrt.DeviceError as error:
        os._exit(7 if f"held by process {parent}" in error.message else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
child = os.fork()  # and a child that ends does not take it from its parent
if child == 0:
    del device
    os._exit(0)
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    try:
        calrt.open("null", exclusive=True)
    except calrt.DeviceError:
        os._exit(7)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert (done.stdout, done.stderr) == ("ok\n", "")
