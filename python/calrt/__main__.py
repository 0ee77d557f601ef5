# SPDX-License-Identifier: Apache-2.0
"""`python -m calrt`: where the parts for C++ are, else the same as the `calrt` command.

python -m calrt --cmakedir     the folder for CMake: -Dcalrt_DIR="$(python -m calrt --cmakedir)"
python -m calrt --includes     the folder of the headers, calrt/driver.h among them
"""

from __future__ import annotations

import sys
from pathlib import Path

from calrt import _core
from calrt.cli import main

_FOLDERS = {"--cmakedir": "cmake", "--includes": "include"}


def _folder(name: str) -> Path:
    """A folder beside the native module, which need not be where the Python files are."""
    return Path(_core.__file__).parent / name


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in _FOLDERS:
        print(_folder(_FOLDERS[sys.argv[1]]))
        sys.exit(0)
    sys.exit(main())
