# SPDX-License-Identifier: Apache-2.0
"""Short measurements of this machine: copies, BF16 conversion, submitting a job.

Each figure stands beside what it is held against, measured in turns with it, so that both share the load of
the machine: a limit, which is what could be had at best, or a peer, which does the same by other means. What
counts is the best of several short rounds: what the machine can do when nobody disturbs it. A figure of a
busy machine (`load`) is not to be compared with one of an idle machine.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

import calrt
from calrt import bf16
from calrt._arguments import whole
from calrt._enums import Status
from calrt.errors import error_for
from calrt.perf_rows import Bench
from calrt.progress import Progress, silent

__all__ = ["BF16_SIZES", "COPY_SIZES", "SUBMIT_LIMIT_US", "best", "bf16_rows", "copy_rows", "submit_rows"]

COPY_SIZES = (64, 4096, 1 << 20, 1 << 26)
"""Bytes."""
BF16_SIZES = (1_000, 1_000_000, 10_000_000)
"""Elements."""
SUBMIT_LIMIT_US = 3.0
"""What submit, wait and destroy may cost above an empty call, where the device itself takes no time."""

_ROUND_BYTES = 1 << 20  # moved in one round at least, so that the clock does not show
_MAX_BYTES = 1 << 30
_SUBMITS = 200


def best(*calls: Callable[[], object], rounds: int, times: int = 1) -> list[float]:
    """Best seconds of one call of each. All run in turn, `times` in a row, in each of `rounds` rounds."""
    seconds = [[0.0] * rounds for _ in calls]
    for at in range(-1, rounds):  # round -1 warms caches, pools and branches
        for call, own in zip(calls, seconds, strict=True):
            begin = time.perf_counter()
            for _ in range(times):
                call()
            if at >= 0:
                own[at] = time.perf_counter() - begin
    return [min(own) / times for own in seconds]


def copy_rows(
    device: calrt.Device,
    sizes: Sequence[int] = COPY_SIZES,
    *,
    rounds: int = 25,
    progress: Progress = silent,
) -> Iterator[Bench]:
    """Host to device and back, us per transfer. Limit: numpy's copy between two arrays of the same size.

    For each memory domain of the device. Raises what `Device.alloc` raises.
    """
    sizes = _checked(sizes, _MAX_BYTES)
    domains = device.info.domains or ("host",)
    done, total = itertools.count(1), 2 * len(sizes) * len(domains)
    progress("measuring", 0, total)
    for domain, nbytes in itertools.product(domains, sizes):
        host, one, other = (np.ones(nbytes, np.uint8) for _ in range(3))
        times = max(1, min(200, _ROUND_BYTES // nbytes))
        with device.alloc(nbytes, domain) as buffer:
            plain = partial(np.copyto, one, other)
            for way, move in (("h2d", partial(buffer.write, host)), ("d2h", partial(buffer.read_into, host))):
                moved, copied = best(move, plain, rounds=rounds, times=times)
                progress("measuring", next(done), total)
                yield Bench.of(f"copy.{way}.{domain}", moved * 1e6, "us", n=nbytes, limit=copied * 1e6)


def bf16_rows(
    sizes: Sequence[int] = BF16_SIZES, *, rounds: int = 25, progress: Progress = silent
) -> Iterator[Bench]:
    """BF16 conversion, elements per second. Peer: ml_dtypes, into arrays that are there."""
    sizes = _checked(sizes, _MAX_BYTES // 4)
    done, total = itertools.count(1), 2 * len(sizes)
    progress("measuring", 0, total)
    for n in sizes:
        values = np.random.default_rng(7).standard_normal(n, dtype=np.float32)
        halves = values.astype(bf16.dtype)
        narrow, wide = np.ones_like(halves), np.ones_like(values)
        their_values, their_halves = values.copy(), halves.copy()
        their_narrow, their_wide = np.ones_like(halves), np.ones_like(values)
        races = (
            (
                "bf16.from_f32",
                narrow,
                partial(bf16.from_f32, values, out=narrow),
                partial(np.copyto, their_narrow, their_values, casting="unsafe"),
            ),
            (
                "bf16.to_f32",
                wide,
                partial(bf16.to_f32, halves, out=wide),
                partial(np.copyto, their_wide, their_halves),
            ),
        )
        times = max(1, min(200, _ROUND_BYTES // (4 * n)))
        for name, result, ours, theirs in races:
            mine, peer = best(ours, theirs, rounds=rounds, times=times)
            progress("measuring", next(done), total)
            digest = hashlib.sha256(result.tobytes()).hexdigest()
            yield Bench.of(name, n / mine, "elem/s", n=n, limit=n / peer, out_sha256=digest)


def submit_rows(
    model: calrt.Model, *, rounds: int = 25, at_once: bool = True, progress: Progress = silent
) -> Iterator[Bench]:
    """Submit, wait and destroy of one decode job, us, above an empty call: of a graph, and of a binding slot.

    `at_once`: the device takes no time, so that the limit is `SUBMIT_LIMIT_US`; else there is none, as the
    figure has the device's own work in it.
    """
    graphs = [graph for graph in model.graphs.values() if graph.kind == "decode"]
    if not graphs:
        raise error_for(Status.UNSUPPORTED, "this package has no decode graph to submit")
    graph = min(graphs, key=lambda graph: graph.batch)
    submits = min(_SUBMITS, model.cells)
    limit = SUBMIT_LIMIT_US if at_once else None
    tokens = np.zeros(graph.batch, np.int32)
    positions = [np.full(graph.batch, step, np.int32) for step in range(submits)]
    lanes = [model.kv.reserve(submits) for _ in range(graph.batch)]

    def plain() -> None:
        for position in positions:
            graph.submit(tokens=tokens, positions=position, lanes=lanes).wait()
        forget()

    def forget() -> None:
        for lane in lanes:
            lane.truncate(0)

    progress("measuring", 0, 2)
    try:
        with graph.context(lanes=lanes) as context:
            slot, places = context[0], context[0].inputs["positions"].numpy()

            def bound() -> None:
                for step in range(submits):
                    places[:] = step
                    slot.submit().wait()
                forget()

            empty_context = graph.context()
            empty_context.close()

            def nothing() -> None:
                for _ in range(submits):
                    empty_context.close()

            for done, (name, call) in enumerate((("graph", plain), ("slot", bound)), 1):
                taken, empty = best(call, nothing, rounds=rounds)
                progress("measuring", done, 2)
                value = max(0.0, taken - empty) / submits * 1e6
                yield Bench.of(f"submit.{name}.{graph.name}", value, "us", limit=limit)
    finally:
        for lane in lanes:
            lane.release()


def _checked(sizes: Sequence[int], most: int) -> list[int]:
    return [whole("sizes", size, 1, most) for size in sizes]
