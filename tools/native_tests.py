# SPDX-License-Identifier: Apache-2.0
"""Run the native tests: native_tests.py [BUILD_DIR [NAMES]]; default: all of the editable install's build.
NAMES is a regular expression.

All processors are used, a test has two minutes, a failed one's output is printed, and so is the time of
those that took long.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

TEST_SECONDS = 120
SLOW_SECONDS = 5.0
MAX_LINES = 100  # of a failed test's output
_PASSED = re.compile(r"Test +#\d+: (\S+) \.+ +Passed +([0-9.]+) sec")
_RESULT = re.compile(r"Test +#\d+: |% tests passed")
_NOISE = re.compile(r" *(Start +\d+:|Test project)")


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    if len(sys.argv) > 1:
        builds = [pathlib.Path(sys.argv[1])]
    else:
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}-"
        builds = sorted(root.glob(f"build/{tag}*"))
    builds = [build for build in builds if (build / "csrc" / "tests").is_dir()]
    if not builds:
        print("calrt: no build with native tests found; run `make test`", file=sys.stderr)
        return 2
    ctest = pathlib.Path(sys.executable).with_name("ctest")
    if not ctest.exists():
        print("calrt: ctest is missing; it comes with cmake (pip install cmake)", file=sys.stderr)
        return 2
    jobs = str(os.cpu_count() or 2)
    command = [str(ctest), "--test-dir", str(builds[-1] / "csrc"), "--output-on-failure", "--no-tests=error"]
    command += ["-j", jobs, "--timeout", str(TEST_SECONDS)]
    if len(sys.argv) > 2:
        command += ["-R", sys.argv[2]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        lines = 0
        for line in process.stdout:
            passed = _PASSED.search(line)
            if passed and float(passed[2]) >= SLOW_SECONDS:
                print(f"slow: {passed[1]} took {float(passed[2]):.1f} s", flush=True)
            if _RESULT.search(line):
                lines = 0
            if passed or not line.strip() or _NOISE.match(line):
                continue
            lines += 1
            if lines <= MAX_LINES:
                print(line, end="", flush=True)
            elif lines == MAX_LINES + 1:
                print("... (the test itself prints more)", flush=True)
    return process.returncode


if __name__ == "__main__":
    raise SystemExit(main())
