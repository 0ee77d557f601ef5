# SPDX-License-Identifier: Apache-2.0
"""Programs in a Python of their own: how they end is what is tested. A hang fails; so does an abort."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CEILING = 90  # seconds; everything here takes less than 10 on a loaded machine

# From 3.12 on every fork beside a thread is warned of; here that is what is tested.
_OPTIONS = ["-X", "faulthandler", "-W", "ignore:This process:DeprecationWarning"]
_DEADLY = re.compile(r"Fatal Python error|terminate called|FATAL: exception|Segmentation|core dumped")

# A null device that the fault layer has misbehave, a model of four lanes, and a job when it is wanted.
BROKEN = """
import asyncio, atexit, gc, os, signal, sys, threading, time
import calrt
device = calrt.open("null", layers="fault:" + sys.argv[2])
model = device.load(sys.argv[1], lanes=4, cells=128)
graph = model.graphs["decode_b1"]
lane = model.kv.reserve(100)
def submit(deadline=None, lane=lane):
    return graph.submit(tokens=[1], positions=[lane.length], lanes=[lane], deadline=deadline)
def in_thread(work, *arguments):
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread
def interrupt_in(seconds):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell has it ignored
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
"""


def run(
    code: str, *arguments: str | Path, expect: int = 0, quiet: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs `code`, which must end with `expect`, without a word on stderr if `quiet`."""
    done = subprocess.run(
        [sys.executable, *_OPTIONS, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=CEILING,
    )
    assert done.returncode == expect, done.stderr
    assert not _DEADLY.search(done.stderr), done.stderr
    if quiet:
        assert done.stderr == ""
    return done
