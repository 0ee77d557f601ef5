# SPDX-License-Identifier: Apache-2.0
"""The driver ABI's header: complete in the lock file, and good C11 and C++20 for every compiler found."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "csrc/calrt/include/calrt/driver.h"
ENTRIES = ROOT / "csrc/calrt/include/calrt/driver_entries.inc"
INCLUDES = [f"-I{ROOT / folder}" for folder in ("csrc/base/include", "csrc/calrt/include")]


def fields_of(declaration: str) -> list[str]:
    """The names that one struct member declares: `uint32_t a, b`, `char m[256]`, `void (*f)(int a)`."""
    function = re.search(r"\(\s*\*\s*(\w+)\s*\)", declaration)
    if function:
        return [function[1]]
    return [re.search(r"(\w+)\s*(\[.*\])?\s*$", part)[1] for part in declaration.split(",")]  # type: ignore[index]


def structs_of(text: str) -> dict[str, list[str]]:
    """Each struct of the header with its fields, in order."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {}
    for name, body, alias in re.findall(r"typedef struct (\w+) \{(.*?)\}\s*(\w+);", code, re.DOTALL):
        assert name == alias
        found[name] = [field for line in body.split(";") if line.strip() for field in fields_of(line)]
    return found


STRUCTS = structs_of(HEADER.read_text())


def test_the_parser_sees_every_kind_of_member() -> None:
    text = "typedef struct s { int a; /* int no; */ uint32_t b, c; char d[2]; void (*e)(int f, int g); } s;"
    assert structs_of(text) == {"s": ["a", "b", "c", "d", "e"]}
    assert len(re.findall(r"typedef struct \w+ \{", HEADER.read_text())) == len(STRUCTS)


def test_the_lock_lists_every_struct_and_field_of_the_header() -> None:
    lock = (ROOT / "csrc/tests/driver_abi.lock").read_text().split("\n")
    locked = [line.split()[0] for line in lock if line]
    want = [*STRUCTS, *(f"{struct}.{field}" for struct, fields in STRUCTS.items() for field in fields)]
    assert sorted(locked) == sorted(want)


def test_the_entry_list_is_the_table() -> None:
    entries = re.findall(r"^CALD_ENTRY\((\w+), (\w+), (\d+), (\w+)\)", ENTRIES.read_text(), re.MULTILINE)
    head = ["struct_size", "abi_version", "name", "version"]
    assert [*head, *(name for name, *_ in entries)] == STRUCTS["cald_driver_table"]
    major, minor = (
        int(re.search(rf"#define CALD_ABI_{part} (\d+)", HEADER.read_text())[1])  # type: ignore[index]
        for part in ("MAJOR", "MINOR")
    )
    assert major == 1
    known = {1, 9, *range(101, 101 + minor)}  # the drafts, then 1.1 and later
    assert {int(since) for _, _, since, _ in entries} <= known


def test_the_page_has_every_entry() -> None:
    spec = importlib.util.spec_from_file_location("abi_entries", ROOT / "tools/abi_entries.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text() == tool.page(), "run tools/abi_entries.py"
    listed = re.findall(r"^\| `(\w+)` \| (?:required|optional) \|", tool.page(), re.MULTILINE)
    assert listed == STRUCTS["cald_driver_table"][4:]


C11 = ["-std=c11", "-xc"]
CPP20 = ["-std=c++20", "-xc++"]


@pytest.mark.parametrize(
    ("compilers", "standard"),
    [(["gcc"], C11), (["g++"], CPP20), (["clang", "clang-14"], C11), (["clang++", "clang++-14"], CPP20)],
    ids=["gcc-c11", "g++-c++20", "clang-c11", "clang++-c++20"],
)
def test_the_headers_compile(compilers: list[str], standard: list[str], tmp_path: Path) -> None:
    compiler = next((path for name in compilers if (path := shutil.which(name))), None)
    if compiler is None:
        pytest.skip(f"none of {', '.join(compilers)} is installed")
    names = sorted(path.name for path in HEADER.parent.glob("*.h"))
    assert "driver.h" in names
    source = tmp_path / "header.txt"
    source.write_text("".join(f'#include "calrt/{name}"\n' for name in names) + "int nothing;\n")
    strict = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [compiler, *standard, *strict, *INCLUDES, str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
