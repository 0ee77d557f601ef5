# SPDX-License-Identifier: Apache-2.0
"""Logits that a device tiles, to linear float32, beside logits that lie linear; interleaved in one run.

    pytest benchmarks/bench_layout.py --benchmark-only

Elements per second; must reach the linear conversion / 1.5. All arrays are touched beforehand. The second row
of each is held against memcpy of as many bytes, 6 for each element: it copies 3 and so reads 3 and writes 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calrt import _core, bf16
from conftest import Perf

VOCAB = 151_936


def tiled(rows: int, tile: int, padded_rows: int) -> tuple[np.ndarray[Any, Any], list[dict[str, int]]]:
    """Memory of [rows, VOCAB] whose columns are cut in tiles, the rows of a tile next to each other."""
    blocks = -(-VOCAB // tile)
    axes = [
        (1, tile, 0, blocks, 2 * tile * padded_rows),
        (0, 1, 0, padded_rows, 2 * tile),
        (1, 1, tile, tile, 2),
    ]
    layout = [
        dict(zip(("dim", "divisor", "modulus", "extent", "stride"), axis, strict=True)) for axis in axes
    ]
    return np.ones(blocks * padded_rows * tile, np.float32).astype(bf16.dtype), layout


@pytest.mark.parametrize("padded", [False, True], ids=["dense", "rows padded to the tile"])
@pytest.mark.parametrize("tile", [8, 16, 32])
@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_tiled_logits_beside_linear_ones(perf: Perf, rows: int, tile: int, padded: bool) -> None:
    memory, layout = tiled(rows, tile, -(-rows // tile) * tile if padded else rows)
    linear = np.ones((rows, VOCAB), np.float32).astype(bf16.dtype)
    out, same = np.zeros((rows, VOCAB), np.float32), np.zeros((rows, VOCAB), np.float32)
    source, target = np.ones(3 * linear.size, np.uint8), np.ones(3 * linear.size, np.uint8)
    mine, limit, copied = perf.best(
        lambda: _core.unpack_f32(memory, layout, out),
        lambda: bf16.to_f32(linear, out=same),
        lambda: np.copyto(target, source),
        rounds=25,
    )
    assert (out == same).all()
    kind = f"tiled {tile}{', padded' if padded else ''}"
    for name, seconds in (("linear", limit), ("memcpy", copied)):
        perf.record(
            f"{kind} / {name}", linear.size / mine, "elem/s", limit=linear.size / seconds, n=linear.size
        )
