# SPDX-License-Identifier: Apache-2.0
"""The file of `--record`: written by two at once, with a mode that lets others read, a pipe without end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from calrt import cache_files
from calrt.cache_files import folder_lock, write_atomically
from calrt.cli import main
from calrt.cli.recording import Recording
from calrt.evidence import Evidence, Identity, Verdict

WRITERS = 8


def evidence(name: str) -> Evidence:
    identity = Identity("0" * 64, "", "1" * 64, "mock-tiny", "mock:0")
    return Evidence(
        *(identity, "mock", "0.1.0", "tiny", "mock:tiny", "0.1.0", "2026-01-01T00:00:00+00:00"),
        {name: Verdict("pass", (f"probe:{name}",))},
    )


def test_what_two_record_at_once_is_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the file, waits for the others to have read it if they can, and replaces it."""
    path = tmp_path / "evidence.json"
    all_read = threading.Barrier(WRITERS)
    merged_into = Evidence.merged_into

    def slowly(self: Evidence, target: str) -> Evidence:
        merged = merged_into(self, target)
        with contextlib.suppress(threading.BrokenBarrierError):
            all_read.wait(0.2)
        return merged

    monkeypatch.setattr(Evidence, "merged_into", slowly)
    recordings = [Recording(str(path)) for _ in range(WRITERS)]
    threads = [
        threading.Thread(target=recording.add, args=[lambda at=at: evidence(f"capability_{at}")])
        for at, recording in enumerate(recordings)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [recording.error for recording in recordings] == [None] * WRITERS
    assert set(Evidence.read(path).capabilities) == {f"capability_{at}" for at in range(WRITERS)}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_stays_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "_LOCK_POLL", 0.001)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"for 0.01 s: try again"), folder_lock(tmp_path, 0.01):
            pass
    finally:
        os.close(fd)
    with folder_lock(tmp_path, 0.01):
        pass


def test_a_file_that_others_may_read_stays_one(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", b"1")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o664)
    write_atomically(tmp_path / "new", b"2")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o664
    assert (tmp_path / "new").read_bytes() == b"2"


def test_a_pipe_that_nobody_reads_is_no_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    recording = Recording(str(tmp_path / "pipe"))
    recording.add(lambda: evidence("queue"))
    assert "pipe: No such device or address" in str(recording.error)
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        recording = Recording(str(tmp_path / "pipe"))
        recording.add(lambda: evidence("queue"))
        assert recording.error is None
        assert b'"queue"' in reader.read()


@pytest.mark.parametrize("key", ["spec", "isolate", "allow_unverified"])
def test_how_a_probe_opens_the_device_is_no_option_of_it(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "golden", "--option", f"{key}=x"]) == 2
    assert f"--option {key}=x: {key} is how the device is opened" in capsys.readouterr().err


def test_a_place_for_no_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", "null", "--output", str(tmp_path / "file" / "r.zip")]) == 1
    assert f"{tmp_path}/file/r.zip: no report can be written there" in capsys.readouterr().err
