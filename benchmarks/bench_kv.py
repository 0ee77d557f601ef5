# SPDX-License-Identifier: Apache-2.0
"""KV from Python: a reserve and its release; a state to memory and back beside memcpy; a shift, a prefill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calrt

CALLS = 500
LIMIT_S = 1.5e-6
SAVE_SHARE, RESTORE_SHARE = 0.55, 0.40
SHIFT_SHARE = 0.05
CELLS = 2048  # of 32 KiB: a lane of 64 MiB


def test_try_reserve(perf, null_model: calrt.Model) -> None:  # type: ignore[no-untyped-def]
    """Beside a bound call that does nothing, which tells how fast the machine was."""
    kv = null_model.kv
    context = null_model.graphs["decode_b1"].context()
    context.close()

    def reserve() -> None:
        for _ in range(CALLS):
            kv.try_reserve(8).release()

    def ask() -> None:
        for _ in range(CALLS):
            kv.can_allocate(8)

    def nothing() -> None:
        for _ in range(CALLS):
            context.close()

    reserved, asked, empty = perf.best(reserve, ask, nothing, rounds=40)
    perf.record("py try_reserve+release", 1e6 * reserved / CALLS, "us", limit=1e6 * LIMIT_S)
    perf.record("py can_allocate", 1e6 * asked / CALLS, "us")
    perf.record("py empty bound call", 1e6 * empty / CALLS, "us")


@pytest.fixture(scope="module")
def wide_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama whose cells are large and whose other work is small."""
    from calrt.package_build import build_package
    from tiny_gguf import make_llama

    source = make_llama(
        tmp_path_factory.mktemp("gguf") / "wide.gguf", layers=8, embed=512, heads=8, kv_heads=8, context=CELLS
    )
    return build_package(source, tmp_path_factory.mktemp("package") / "wide")


@pytest.fixture
def full(wide_package: Path) -> Iterator[tuple[calrt.Model, calrt.kv.Lane]]:
    """A model on cpu, and a lane of it that is full."""
    with (
        calrt.open("cpu") as device,
        device.load(wide_package, lanes=1, cells=CELLS) as model,
        model.kv.reserve(CELLS) as lane,
    ):
        prefill(model, lane)
        yield model, lane


def prefill(model: calrt.Model, lane: calrt.kv.Lane) -> None:
    """The lane anew, all of it."""
    lane.truncate(0)
    calrt.Sequence(model, lane).prefill([1] * model.cells)


def test_state(perf, full: tuple[calrt.Model, calrt.kv.Lane]) -> None:  # type: ignore[no-untyped-def]
    model, lane = full
    kv = model.kv
    data = bytearray(len(kv.state(lane)))
    source, target = np.frombuffer(data, np.uint8).copy(), np.zeros(len(data), np.uint8)

    def copy() -> None:
        target[:] = source

    def save() -> None:
        kv.state(lane, out=data)

    def restore() -> None:
        kv.restore(lane, data)

    memcpy, saved, restored = perf.best(copy, save, restore)
    perf.record("py state: save", 1e3 * saved, "ms", limit=1e3 * memcpy / SAVE_SHARE, n=len(data))
    perf.record("py state: restore", 1e3 * restored, "ms", limit=1e3 * memcpy / RESTORE_SHARE, n=len(data))


def test_shift(perf, full: tuple[calrt.Model, calrt.kv.Lane]) -> None:  # type: ignore[no-untyped-def]
    model, lane = full
    # Of a full lane, so that all but one of its cells move and are turned.
    shifted, filled = perf.best(lambda: model.kv.shift(lane, 0, 1), lambda: prefill(model, lane), rounds=3)
    perf.record(
        "py shift of a full lane", 1e3 * shifted, "ms", limit=1e3 * SHIFT_SHARE * filled, n=model.cells
    )
