# SPDX-License-Identifier: Apache-2.0
"""BF16 conversion beside ml_dtypes and beside memcpy, one thread, each pair interleaved in one run.

    pytest benchmarks/bench_bf16.py --benchmark-only

Elements per second. Each side has arrays of its own, so that none finds in the cache what the other has just
read, and calls many times in a row, so that arrays that fit the caches lie there; all are touched beforehand,
so that no page fault is timed, except in results made anew (astype).
"memcpy" moves as many bytes as the conversion, 6 for each element: it copies 3 and so reads 3 and writes 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from calrt import bf16
from conftest import Perf

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def arrays(n: int) -> Arrays:
    """Values, their halves, and room for the results of both ways."""
    values = np.random.default_rng(7).standard_normal(n, dtype=np.float32)
    halves = values.astype(bf16.dtype)
    return values, halves, np.ones_like(values), np.ones_like(halves)


def repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def loop() -> None:
        for _ in range(times):
            call()

    return loop


def race(
    perf: Perf,
    name: str,
    n: int,
    ours: Callable[[], object],
    peer: Callable[[], object],
    moved: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """`moved`: what memcpy copies from and to in the same rounds, for a row of its own."""
    times = max(1, min(2000, 20_000_000 // max(n, 1)))
    calls = [ours, peer]
    if moved is not None:
        source, target = moved
        calls.append(lambda: np.copyto(target, source))
    mine, theirs, *copied = perf.best(
        *(repeated(call, times) for call in calls), rounds=25 if n < 10**8 else 7
    )
    elements = max(n, 1) * times
    perf.record(name, elements / mine, "elem/s", limit=elements / theirs, n=n)
    for seconds in copied:
        perf.record(
            f"{name.split(' / ')[0]}, new array / memcpy",
            elements / mine,
            "elem/s",
            limit=elements / seconds,
            n=n,
        )


@pytest.mark.parametrize("n", [10**4, 10**6])
def test_from_f32_beside_astype(perf: Perf, n: int) -> None:
    """Must reach 4 times ml_dtypes, each into an array that the call makes."""
    values, _, _, _ = arrays(n)
    theirs = values.copy()
    race(
        perf,
        "from_f32 / astype",
        n,
        lambda: bf16.from_f32(values),
        lambda: theirs.astype(bf16.dtype),
        moved=(np.ones(3 * n, np.uint8), np.ones(3 * n, np.uint8)),
    )


@pytest.mark.parametrize("n", [10**4, 10**6])
def test_from_f32_beside_copyto(perf: Perf, n: int) -> None:
    """The same into arrays that are there."""
    values, halves, _, narrow = arrays(n)
    theirs = values.copy()
    race(
        perf,
        "from_f32(out) / copyto",
        n,
        lambda: bf16.from_f32(values, out=narrow),
        lambda: np.copyto(halves, theirs, casting="unsafe"),
    )


@pytest.mark.parametrize("n", [1, 16, 67, 1000, 10**4, 10**5, 10**6, 10**7, 10**8])
def test_to_f32_beside_ml_dtypes(perf: Perf, n: int) -> None:
    """Must never be slower than ml_dtypes into the same array."""
    theirs, halves, wide, _ = arrays(n)
    same = halves.copy()
    race(
        perf,
        "to_f32(out) / copyto",
        n,
        lambda: bf16.to_f32(halves, out=wide),
        lambda: np.copyto(theirs, same),
    )


def test_both_ways_beside_memcpy(perf: Perf) -> None:
    """Must reach 90 % of memcpy where neither fits a cache."""
    n = 10**8
    values, halves, wide, narrow = arrays(n)
    source = np.ones(3 * n, np.uint8)
    target = np.ones(3 * n, np.uint8)
    copied, narrowed, widened = perf.best(
        lambda: np.copyto(target, source),
        lambda: bf16.from_f32(values, out=narrow),
        lambda: bf16.to_f32(halves, out=wide),
        rounds=9,
    )
    digests = [hashlib.sha256(memoryview(a).cast("B")).hexdigest() for a in (narrow.view("u2"), wide)]
    perf.record("from_f32 / memcpy", n / narrowed, "elem/s", limit=n / copied, n=n, out_sha256=digests[0])
    perf.record("to_f32 / memcpy", n / widened, "elem/s", limit=n / copied, n=n, out_sha256=digests[1])
