# SPDX-License-Identifier: Apache-2.0
"""KV from Python: a reserve and its release, and a sequence's state to memory and back, beside memcpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calrt

CALLS = 500
LIMIT_S = 1.5e-6
SAVE_SHARE, RESTORE_SHARE = 0.55, 0.40


def test_try_reserve(perf, null_model: calrt.Model) -> None:  # type: ignore[no-untyped-def]
    kv = null_model.kv

    def run() -> None:
        for _ in range(CALLS):
            kv.try_reserve(8).release()

    (best,) = perf.best(run, rounds=40)
    perf.record("py try_reserve+release", 1e6 * best / CALLS, "us", limit=1e6 * LIMIT_S)


@pytest.fixture
def long_model(tiny_package: Path) -> Iterator[calrt.Model]:
    """The tiny model on cpu, its whole context."""
    with calrt.open("cpu") as device, device.load(tiny_package, lanes=2) as model:
        yield model


def test_state(perf, long_model: calrt.Model) -> None:  # type: ignore[no-untyped-def]
    kv = long_model.kv
    with kv.reserve(long_model.cells) as lane:
        calrt.Sequence(long_model, lane).prefill([1] * long_model.cells)
        data = bytearray(len(kv.state(lane)))
        source, target = np.frombuffer(data, np.uint8).copy(), np.zeros(len(data), np.uint8)

        def copy() -> None:
            target[:] = source

        def save() -> None:
            kv.state(lane, out=data)

        def restore() -> None:
            kv.restore(lane, data)

        memcpy, saved, restored = perf.best(copy, save, restore)
    gib = len(data) / (1 << 30)
    perf.record("py state: save", gib / saved, "GiB/s", limit=SAVE_SHARE * gib / memcpy, n=len(data))
    perf.record("py state: restore", gib / restored, "GiB/s", limit=RESTORE_SHARE * gib / memcpy, n=len(data))
