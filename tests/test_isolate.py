# SPDX-License-Identifier: Apache-2.0
"""Drivers in a process of their own: the same answers, views that outlive it, DEVICE_LOST in time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt import conformance, presets
from test_conformance_defects import driver

PATIENCE_S = 60.0
PROMPT = [1, 60, 70, 80, 90, 100]


def children() -> list[int]:
    """Processes that this one has started and that have not been reaped."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def isolated() -> list[int]:
    """Those of them that run a driver."""
    return [
        pid
        for pid in children()
        if b"calrt-isolate" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    ]


def gone() -> bool:
    """Whether they end soon, now that nothing holds them."""
    gc.collect()
    until = time.monotonic() + PATIENCE_S
    while isolated() and time.monotonic() < until:
        time.sleep(0.005)
    return not isolated()


@pytest.fixture(autouse=True)
def alone() -> None:
    """A failure that was looked at keeps its frames, and with them the device, until they are collected."""
    assert gone()


@pytest.fixture(scope="module")
def mock_package() -> Path:
    return Path(presets.build_preset("tiny", driver="mock", device_class="mock-tiny"))


def tokens(model: calrt.Model, count: int = 24) -> list[int]:
    return model.generate(PROMPT, max_tokens=count, temperature=0, stop_tokens=())


def generate_for_ever(model: calrt.Model) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        tokens(model)


@contextlib.contextmanager
def opened(spec: str, package: Path, **options: object) -> Iterator[tuple[calrt.Device, calrt.Model]]:
    with calrt.open(spec, **options) as device, device.load(package, lanes=2, cells=128) as model:  # type: ignore[arg-type]
        yield device, model


def test_the_same_tokens_as_in_this_process(tiny_package: Path, mock_package: Path) -> None:
    def run(spec: str, package: Path, **options: object) -> tuple[list[int], str, int]:
        with opened(spec, package, **options) as (device, model):
            return tokens(model), device.info.driver, len(isolated())

    for plain, package, options in (("cpu", tiny_package, {"threads": 1}), ("mock", mock_package, {})):
        right, name, _ = run(plain, package, **options)
        assert run(f"isolate:{plain}", package, **options) == (right, name, 1)
        assert gone()


def test_the_argument_says_the_same_as_the_spec() -> None:
    def processes(spec: str, isolate: bool | None) -> int:
        with calrt.open(spec, isolate=isolate) as device:
            assert device.info.driver == "null"
            return len(isolated())

    assert [processes("null", True), processes("isolate:null", None), processes("isolate:null", True)] == [
        1,
        1,
        1,
    ]
    assert gone()
    assert [processes("null", False), processes("null", None)] == [0, 0]
    with pytest.raises(calrt.InvalidArgumentError, match="isolate=False contradict"):
        calrt.open("isolate:null", isolate=False)
    with pytest.raises(calrt.InvalidArgumentError, match="isolate"):
        calrt.open("null", isolate="yes")  # type: ignore[arg-type]
    with pytest.raises(calrt.InvalidArgumentError, match="there is no driver 'nosuch'"):
        calrt.open("isolate:nosuch")
    with pytest.raises(calrt.InvalidArgumentError, match="seconds from"):
        calrt.open("isolate:null", isolate_deadline="soon")
    with pytest.raises(calrt.InvalidArgumentError, match="isolate_deadline"):
        calrt.open("null", isolate=False, isolate_deadline=3)  # a driver of this process has no such option


def test_views_copy_nothing_and_outlive_the_process(mock_package: Path) -> None:
    with opened("isolate:mock", mock_package) as (_, model):
        copied = calrt._core.copied_bytes()
        with model.sequence(16) as sequence:
            logits = sequence.prefill(PROMPT)
            view = logits.numpy()
            before = view.copy()
            assert calrt._core.copied_bytes() == copied
            shared = [
                line for line in Path("/proc/self/maps").read_text().splitlines() if "calrt-isolate" in line
            ]
            inside = [
                begin <= view.ctypes.data < end
                for begin, end in ([int(n, 16) for n in line.split()[0].split("-")] for line in shared)
            ]
            assert any(inside)
            os.kill(isolated()[0], signal.SIGKILL)
            assert gone()
            assert np.array_equal(view, before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_dead_process_is_a_lost_device_and_the_next_one_is_right(mock_package: Path, number: int) -> None:
    with opened("mock", mock_package) as (_, plain):
        right = tokens(plain)
    with opened("isolate:mock", mock_package) as (device, model):
        assert tokens(model) == right
        killer = threading.Timer(0.05, lambda: os.kill(isolated()[0], number))
        killer.start()
        with pytest.raises(calrt.DeviceLostError, match=f"signal {int(number)} ") as caught:
            generate_for_ever(model)
        assert "open the device again" in str(caught.value)
        killer.join()
        with pytest.raises(calrt.DeviceLostError):
            device.health()
    assert gone()
    with opened("isolate:mock", mock_package) as (device, model):
        assert tokens(model) == right


def test_a_load_that_hangs_is_ended_by_its_deadline(
    null_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_ISOLATE_LAYERS", "fault:model_load delay_ms=60000")
    with calrt.open("isolate:null", isolate_deadline=0.3) as device:
        begun = time.monotonic()
        with pytest.raises(calrt.DeviceLostError, match=r"did not return within 0\.3 s.*model_load"):
            device.load(null_package)
        assert time.monotonic() - begun < 30
        with calrt.open("null") as other:  # what hangs there holds up nobody here
            assert other.info.driver == "null"
    assert gone()


def test_a_process_that_hangs_leaves_this_one_its_threads(
    null_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_ISOLATE_LAYERS", "fault:submit delay_ms=60000")
    with opened("isolate:null", null_package, isolate_deadline=1.0) as (_, model):
        counted = 0
        failed: list[BaseException] = []

        def generate() -> None:
            try:
                tokens(model, 1)
            except calrt.CalrtError as error:
                failed.append(error)

        thread = threading.Thread(target=generate)
        thread.start()
        while thread.is_alive():
            counted += 1
            time.sleep(0.001)
        thread.join()
        assert counted > 50
        assert isinstance(failed[0], calrt.DeviceLostError)


@pytest.mark.parametrize(("entry", "name"), [("load", "deadly"), ("driver_open", "null")])
def test_the_deadline_of_an_open_holds_from_its_first_call(
    entry: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALRT_DEADLY", f"{entry} hang")
    with pytest.raises(calrt.DeviceLostError, match=rf"driver {name} did not return within 0\.3 s"):
        calrt.open(f"isolate:{driver('deadly')}:0", isolate_deadline=0.3)
    assert gone()


@pytest.mark.parametrize(
    ("stop", "deadlines", "told"),
    [
        (True, {"isolate_deadline": 0.3, "isolate_job_deadline": 600}, "gave no sign of life for 0.3"),
        (False, {"isolate_job_deadline": 0.3}, "ended none of its"),
        (False, {"isolate_deadline": 0.3}, "ended none of its"),
    ],
)
def test_a_job_that_does_not_end_is_noticed_though_nobody_calls(
    null_package: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: bool,
    deadlines: dict[str, float],
    told: str,
) -> None:
    monkeypatch.setenv("CALRT_ISOLATE_LAYERS", "fault:completion hold")
    with opened("isolate:null", null_package, **deadlines) as (_, model):
        lane = model.kv.reserve(16)
        job = model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane])
        if stop:
            os.kill(isolated()[0], signal.SIGSTOP)

        async def wait() -> None:
            await asyncio.wait_for(job, PATIENCE_S)

        with pytest.raises(calrt.DeviceLostError, match=told):
            asyncio.run(wait())
        with pytest.raises(calrt.DeviceLostError, match=told):
            job.wait()
    assert gone()


@pytest.mark.parametrize("spec", ["isolate:null", "isolate:mock", "isolate:cpu"])
def test_an_isolated_driver_conforms_like_the_plain_one(spec: str) -> None:
    report = conformance.run(spec)
    assert report.conforms, report.broken
    assert report.subject["driver"] == spec.removeprefix("isolate:")


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    home = Path(calrt._core.__file__).parent
    shutil.copy(home / "libcalrt.so", tmp_path)
    (tmp_path / "bin").mkdir()
    shutil.copy(home / "bin" / "calrt-conformance", tmp_path / "bin")
    words = [
        str(tmp_path / "bin" / "calrt-conformance"),
        f"isolate:{home}/drivers/libcald_null.so",
        "--describe",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    said = done.stderr + json.dumps(done.stdout)
    assert "calrt-isolate is missing" in said
    assert str(tmp_path) in said
