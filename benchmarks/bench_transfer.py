# SPDX-License-Identifier: Apache-2.0
"""Transfers from Python, against numpy's own copy between the same two places; see native/transfer.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import calrt

if TYPE_CHECKING:
    from conftest import Perf


def repeated(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    def many() -> None:
        for _ in range(calls):
            call()

    return many


@pytest.mark.parametrize("nbytes", [64, 4096, 1 << 20, 1 << 26])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_transfer(perf: Perf, direction: str, nbytes: int) -> None:
    calls = max(1, min(1000, (1 << 22) // nbytes))
    host = np.ones(nbytes, np.uint8)
    with calrt.open("null") as device, device.alloc(nbytes) as buffer:
        mapped = np.frombuffer(memoryview(buffer), np.uint8)
        ours = (lambda: buffer.write(host)) if direction == "h2d" else (lambda: buffer.read_into(host))
        pair = (mapped, host) if direction == "h2d" else (host, mapped)
        plain, moved = perf.best(repeated(lambda: np.copyto(*pair), calls), repeated(ours, calls), rounds=5)
    perf.record(f"transfer.{direction}", moved / calls * 1e6, "us", limit=plain / calls * 1e6, n=nbytes)
