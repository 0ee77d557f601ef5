# SPDX-License-Identifier: Apache-2.0
"""Run the native benchmarks of the editable install's build: native_bench.py ROWS.jsonl [NAME...]

Prints their figures and writes them as rows of `calrt.perf/1`, as `pytest benchmarks` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import calrt
from calrt.perf import PerfWriter, new_run
from calrt.perf_rows import Driver


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
    build = next(iter(sorted(root.glob(f"build/{tag}*"), reverse=True)), None)
    if build is None:
        print("calrt: nothing is built; run `make test`", file=sys.stderr)
        return 2
    cmake = str(Path(sys.executable).with_name("cmake"))
    for command in (
        [cmake, "-DCALRT_BENCH=ON", str(build)],
        [cmake, "--build", str(build), "--target", "calrt_bench"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    runner = [str(build / "benchmarks/native/calrt_bench"), *sys.argv[2:]]
    environment = {**os.environ, "CALRT_DRIVER_PATH": str(build / "drivers")}
    output = subprocess.run(runner, check=True, capture_output=True, text=True, env=environment).stdout
    with PerfWriter(sys.argv[1], new_run(driver=Driver(ver=calrt.__version__))) as writer:
        for line in output.splitlines():
            row = json.loads(line)
            writer.write(row)
            limit = "" if row["limit"] is None else f", limit {row['limit']:.4g}, ratio {row['ratio']:.3f}"
            print(f"{row['name']}: {row['value']:.4g} {row['unit']}{limit}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
