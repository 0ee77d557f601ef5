# SPDX-License-Identifier: Apache-2.0
"""Run the native tests: native_tests.py [BUILD_DIR]; default: the editable install's build."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys


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
    ctest = shutil.which("ctest", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("ctest")
    if ctest is None:
        print("calrt: ctest is missing; it comes with cmake (pip install cmake)", file=sys.stderr)
        return 2
    command = [ctest, "--test-dir", str(builds[-1] / "csrc"), "--output-on-failure", "-j2"]
    return subprocess.call(command)


if __name__ == "__main__":
    raise SystemExit(main())
