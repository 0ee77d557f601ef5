# SPDX-License-Identifier: Apache-2.0
"""Devices: open, look, allocate, close."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import calrt

DEVICES = ["null", "cpu"]


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_tells_what_it_is(name: str) -> None:
    assert name in calrt.drivers()
    with calrt.open(name) as device:
        assert device.spec == name
        info = device.info
        assert info.driver == name
        assert info.chips >= 1
        assert info.depth >= 1
        assert info.driver_path.endswith(f"libcald_{name}.so")
        assert all(0 <= cap.level <= 4 and cap.source for cap in device.caps)
        assert isinstance(device.counters(), dict)
        assert not device.closed
    assert device.closed


@pytest.mark.parametrize("name", DEVICES)
def test_a_driver_is_found_by_its_path_too(name: str) -> None:
    with calrt.open(name) as device:
        path = device.info.driver_path
    with calrt.open(path) as device:
        assert device.info.driver == name


def test_close_is_idempotent_and_later_calls_say_so() -> None:
    device = calrt.open("null")
    device.close()
    device.close()
    with pytest.raises(calrt.StateError, match="closed"):
        _ = device.info
    with pytest.raises(calrt.StateError, match="closed"):
        device.alloc(16)


def test_unknown_drivers_and_options_are_refused_by_name() -> None:
    with pytest.raises(calrt.CalrtError, match="nowhere"):
        calrt.open("nowhere")
    with pytest.raises(calrt.InvalidArgumentError, match="colour"):
        calrt.open("cpu", colour="blue")
    with pytest.raises(calrt.CalrtError, match="threads"):
        calrt.open("cpu", threads="many")


@pytest.mark.parametrize("name", DEVICES)
def test_buffers_copy_in_and_out(name: str) -> None:
    with calrt.open(name) as device:
        buffer = device.alloc(64)
        assert buffer.nbytes == 64
        assert buffer.domain == "host"
        buffer.write(np.arange(8, dtype=np.int32), offset=16)
        out = np.zeros(8, np.int32)
        buffer.read_into(out, offset=16)
        assert out.tolist() == list(range(8))
        half = np.ones(4, ml_dtypes.bfloat16)
        buffer.write(half)
        back = np.zeros(4, ml_dtypes.bfloat16)
        buffer.read_into(back)
        assert (back == half).all()
        assert bytes(memoryview(buffer)[:2]) == half.tobytes()[:2]


def test_buffer_refusals() -> None:
    with calrt.open("null") as device:
        buffer = device.alloc(16)
        with pytest.raises(calrt.InvalidArgumentError, match="20 bytes at offset 0"):
            buffer.write(bytes(20))
        with pytest.raises(calrt.InvalidArgumentError, match="offset 17"):
            buffer.read_into(bytearray(1), offset=17)
        with pytest.raises(calrt.InvalidArgumentError, match="contiguous"):
            buffer.write(np.zeros(8, np.uint8)[::2])
        with pytest.raises(calrt.InvalidArgumentError, match="out is read-only"):
            buffer.read_into(bytes(4))
        with pytest.raises(calrt.InvalidArgumentError, match="domain"):
            device.alloc(16, domain="moon")
        buffer.close()
        buffer.close()
        with pytest.raises(calrt.StateError, match="closed"):
            buffer.write(b"x")


def test_a_memoryview_outlives_buffer_and_device() -> None:
    device = calrt.open("null")
    buffer = device.alloc(4096)
    view = memoryview(buffer)
    view[:] = b"\x07" * 4096
    buffer.close(force=True)
    device.close(force=True)
    del buffer, device
    assert set(view) == {7}


def test_native_log_lines_reach_logging() -> None:
    code = (
        "import logging, calrt; logging.basicConfig(format='%(name)s|%(levelname)s|%(message)s'); "
        "calrt.drivers(); calrt.open('null').close()"
    )
    env = {**os.environ, "CALRT_DRIVER_PATH": "not/absolute"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "calrt.calrt|WARNING|CALRT_DRIVER_PATH: 'not/absolute' is not absolute" in done.stderr


def test_a_cache_that_cannot_be_written_is_not_a_missing_model(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CALRT_CACHE", str(tmp_path / "file" / "cache"))
    with calrt.open("cpu") as device, pytest.raises(calrt.PackageError, match="CALRT_CACHE") as caught:
        device.load(tiny_gguf)
    assert caught.value.code == calrt.Status.PACKAGE_CORRUPT
