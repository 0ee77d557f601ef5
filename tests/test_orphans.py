# SPDX-License-Identifier: Apache-2.0
"""A command that is ended by force leaves no process that holds the device, and no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fresh_python
from calrt import _core, conformance
from calrt.presets import build_preset
from test_calrt076 import library
from test_server_recovery import wait_for

__all__ = ["library"]

HANGS = {"CALRT_STANDIN_VICES": "call_never_returns:init", "CALRT_ISOLATE_DEADLINE": "600"}
TAG = "CALRT_TEST_ORPHANS"

PARENT = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def tagged(tag: str) -> dict[int, str]:
    """The command lines of all processes that inherited `tag`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words:
                    found[int(folder.name)] = words
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [["probe", "golden", "-dev"], ["report"]], ids=["probe", "report"])
def test_a_command_leaves_nothing_behind(
    words: list[str], ended_by: signal.Signals, library: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    output = ["--output", str(tmp_path / "r.zip")] if words == ["report"] else []
    with subprocess.Popen(
        [sys.executable, "-m", "calrt", *words, "calrt076", *output, "--timeout", "600"],
        env=os.environ | HANGS | {TAG: str(tmp_path), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            wait_for(lambda: any("calrt-isolate" in line for line in tagged(str(tmp_path)).values()))
            process.send_signal(ended_by)
            assert process.wait(60) == -ended_by
            wait_for(lambda: not tagged(str(tmp_path)))
        finally:
            for pid in tagged(str(tmp_path)):
                os.kill(pid, signal.SIGKILL)
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "r.zip").exists()


@pytest.mark.parametrize("name", ["calrt-conformance", "calrt-raw-loop", "calrt076-raw-loop"])
def test_a_program_that_hangs_in_a_driver_ends_with_its_parent(
    name: str, library: str, tmp_path: Path
) -> None:
    package = str(build_preset("tiny", driver="calrt076", folder=tmp_path / "package"))
    words = {
        "calrt-conformance": [conformance.program(), library],
        "calrt-raw-loop": [str(Path(_core.__file__).parent / "bin" / name), library, package],
        "calrt076-raw-loop": [str(Path(library).parent / name), package, "none"],
    }[name]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *words],
        env=os.environ | HANGS | {TAG: str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        child = int(process.stdout.readline())
        try:
            assert "vice call_never_returns init" in process.stderr.readline()
            process.kill()
            wait_for(lambda: child not in tagged(str(tmp_path)))
        finally:
            for pid in tagged(str(tmp_path)):
                os.kill(pid, signal.SIGKILL)


def test_what_a_replay_unpacked_is_gone_when_it_is_ended(tmp_path: Path) -> None:
    code = """
import os, signal, sys, tempfile, time
from calrt.cli import main
from calrt.report import replay
def unpack(report, progress):
    with tempfile.TemporaryDirectory(dir=report):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
replay.replay = unpack
main(["report", "--replay", sys.argv[1]])
"""
    fresh_python.run(code, tmp_path, expect=-signal.SIGTERM, quiet=False)
    assert list(tmp_path.iterdir()) == []
