# SPDX-License-Identifier: Apache-2.0
"""How fast the cpu device runs the demo model, beside the machine's own limits in the same run.

    python benchmarks/bench_model.py [--threads 1] [--json]

Best of several short runs; the load average is part of the result, because a busy machine is a slower one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import numpy as np

import calrt
from calrt._core import isa


def best(runs: int, call: Callable[[], float]) -> float:
    return max(call() for _ in range(runs))


def read_limit(nbytes: int = 1 << 29) -> float:
    """Bytes per second of one thread that reads a set far larger than the caches."""
    a = np.ones(nbytes // 8, np.float64)

    def once() -> float:
        begin = time.perf_counter()
        a.max()
        return a.nbytes / (time.perf_counter() - begin)

    return best(5, once)


def prefill(model: calrt.Model, n: int) -> float:
    tokens = [1 + i % 1000 for i in range(n)]
    with model.sequence() as sequence:
        begin = time.perf_counter()
        sequence.prefill(tokens)
        return n / (time.perf_counter() - begin)


def decode(model: calrt.Model, batch: int, steps: int) -> float:
    """Tokens per second over all rows of decode_b{batch}, straight through the graph."""
    graph = model.graphs[f"decode_b{batch}"]
    lanes = [model.kv.reserve(tokens=steps + 1, timeout=1.0) for _ in range(batch)]
    try:
        begin = time.perf_counter()
        for position in range(steps):
            job = graph.submit(tokens=[1 + position] * batch, positions=[position] * batch, lanes=lanes)
            job.wait(10.0)
        return batch * steps / (time.perf_counter() - begin)
    finally:
        for lane in lanes:
            lane.release()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    with (
        calrt.open("cpu", threads=args.threads) as device,
        device.load(args.model, lanes=16, cells=1024) as model,
    ):
        weight_bytes = model.info["weight_bytes"]
        limit = read_limit() / weight_bytes
        rows = [("prefill 512", best(4, lambda: prefill(model, 512)), None)]
        for batch in (1, 4, 8, 16):
            steps = 64 if batch == 1 else 24
            speed = best(4, lambda b=batch, s=steps: decode(model, b, s))
            rows.append((f"decode B={batch}", speed, limit * batch))
    load = os.getloadavg()[0]
    if args.json:
        for name, value, bound in rows:
            row = {"kind": "bench", "name": name, "n": args.threads, "value": value, "unit": "tok/s"}
            row |= {"limit": bound, "ratio": value / bound if bound else None, "load": load, "isa": isa()}
            print(json.dumps(row))
        return
    print(
        f"{args.model}, {isa()}, {args.threads} thread(s), load {load:.2f}; limit: weights read once a tick"
    )
    for name, value, bound in rows:
        ratio = f"{100 * value / bound:5.0f} % of {bound:7.0f}" if bound else ""
        print(f"{name:14} {value:8.0f} tok/s  {ratio}")


if __name__ == "__main__":
    main()
