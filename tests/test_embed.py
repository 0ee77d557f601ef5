# SPDX-License-Identifier: Apache-2.0
"""What a C++ program needs is installed: the headers, whole, and the CMake package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import calrt

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def folder(flag: str) -> Path:
    command = [sys.executable, "-m", "calrt", flag]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def test_every_header_includes_only_what_is_installed() -> None:
    root = folder("--includes")
    headers = sorted(path for path in root.rglob("*") if path.suffix in {".h", ".inc"})
    assert root / "calrt" / "driver.h" in headers
    assert root / "engine" / "graph_runner.h" in headers
    for header in headers:
        for name in INCLUDE.findall(header.read_text()):
            assert (root / name).is_file(), f"{header.relative_to(root)} includes {name}"


def test_the_headers_are_those_of_this_tree() -> None:
    root, tree = folder("--includes"), Path(__file__).parent.parent / "csrc"
    for header in (path for path in root.rglob("*") if path.is_file()):
        name = header.relative_to(root)
        sources = [tree / name, tree / "base/include" / name, tree / "calrt/include" / name]
        assert any(s.is_file() and s.read_text() == header.read_text() for s in sources), name


def test_the_cmake_package_is_of_this_version() -> None:
    root = folder("--cmakedir")
    version = (root / "calrt-config-version.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{calrt.__version__}")' in version
    assert (root.parent / "libcalrt.so").is_file()


@pytest.mark.parametrize("words", [["--version"], ["devices", "--json"]])
def test_the_module_is_the_command(words: list[str]) -> None:
    ran = subprocess.run([sys.executable, "-m", "calrt", *words], capture_output=True, text=True)
    assert ran.returncode == 0
    assert ran.stdout
