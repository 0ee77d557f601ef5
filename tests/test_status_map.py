# SPDX-License-Identifier: Apache-2.0
"""tools/status_map.py: a vendor's numbers as a C table, and every mistake told with file and row."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import calrt

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools/status_map.py"
INCLUDES = [f"-I{ROOT / folder}" for folder in ("csrc/base/include", "csrc/calrt/include")]

spec = importlib.util.spec_from_file_location("status_map", TOOL)
assert spec is not None
assert spec.loader is not None
status_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(status_map)

GOOD = '[[status]]\nnative = {native}\nname = "{name}"\nlevel = {level}\nnote = "{note}"\n'


def row(native: object = 9, name: str = "KV_NO_CAPACITY", level: object = 1, note: str = "x") -> str:
    return GOOD.format(native=native, name=name, level=level, note=note)


def run(tmp_path: Path, text: str) -> tuple[int, str, Path]:
    source, out = tmp_path / "status-map.toml", tmp_path / "out" / "rows.h"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(TOOL), str(source), str(out)], capture_output=True, text=True)
    return done.returncode, done.stderr, out


def test_a_map_becomes_a_sorted_table(tmp_path: Path) -> None:
    text = row(9) + row(-5, "DEVICE_LOST", 0) + row(12, "UNKNOWN", 3) + row(-(2**63), "OK")
    code, said, out = run(tmp_path, text)
    assert (code, said) == (0, "")
    table = out.read_text()
    rows = re.findall(r"^    \{(\S+), (\S+), (\d), \"x\"\},$", table, re.MULTILINE)
    assert rows == [
        ("INT64_MIN", "CALD_OK", "1"),
        ("INT64_C(-5)", "CALD_DEVICE_LOST", "0"),
        ("INT64_C(9)", "CALD_KV_NO_CAPACITY", "1"),
        ("INT64_C(12)", "CALD_STATUS_UNKNOWN", "3"),
    ]
    assert "cald_native_map = {cald_native_rows, 4};" in table


def test_the_names_are_those_of_the_status_list() -> None:
    names = status_map.canonical_names()
    assert names == {status.name: int(status) for status in calrt.Status if int(status) < 30}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (row() + row(), "row 2: native 9 is in row 1 already"),
        (row(name="KV_FULL"), "row 1: name is 'KV_FULL': a name of status.inc, or UNKNOWN"),
        (row() + '[[status]]\nnative = 3\nname = "OK"\nnote = "x"\n', "row 2: level is missing"),
        ('[[status]]\nname = "OK"\nlevel = 1\nnote = "x"\n', "row 1: native is missing"),
        (row(native='"9"'), "row 1: native is '9': an integer is due"),
        (row(native=9.0), "row 1: native is 9.0: an integer is due"),
        (row(native="true"), "row 1: native is True: an integer is due"),
        (row(level='"1"'), "row 1: level is '1': an integer is due"),
        (row(level=5), "row 1: level is 5: 0 to 4"),
        (row(level=-1), "row 1: level is -1: 0 to 4"),
        (row(native=2**63 - 1) + row(native=-(2**63), note=" "), "row 2: note is empty"),
        (row() + "colour = 1\n", "row 1: unknown key 'colour'"),
        ("[other]\n" + row(), "unknown key 'other': only [[status]]"),
        ("status = 3\n", "status is 3: write [[status]]"),
        ("status = [3]\n", "row 1: 3 is no table"),
        ("[[status]\n", "line 1"),
    ],
)
def test_mistakes_are_told_with_file_and_row(tmp_path: Path, text: str, said: str) -> None:
    code, error, out = run(tmp_path, text)
    assert code == 1
    assert said in error
    assert str(tmp_path / "status-map.toml") in error
    assert "Traceback" not in error
    assert not out.exists()


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    code, error, _ = run(tmp_path, row(name="A") + row(1, name="B") + row(2, level=9))
    assert code == 1
    assert [line.split(": ")[1] for line in error.splitlines()] == ["row 1", "row 2", "row 3"]


def test_a_missing_file_or_argument_is_told(tmp_path: Path) -> None:
    gone = subprocess.run(
        [sys.executable, str(TOOL), str(tmp_path / "gone.toml"), str(tmp_path / "out.h")],
        capture_output=True,
        text=True,
    )
    assert gone.returncode == 1
    assert "gone.toml" in gone.stderr
    assert subprocess.run([sys.executable, str(TOOL)], capture_output=True).returncode == 2


@given(st.text(max_size=40))
def test_notes_are_c_literals_of_their_bytes(note: str) -> None:
    try:
        data = note.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate: no TOML file can hold one
    literal = status_map.c_string(note)
    plain = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), literal[1:-1])
    assert plain.encode("latin-1") == data
    assert "\n" not in literal
    assert "?" not in literal


@pytest.mark.parametrize("count", [0, 3])
def test_the_table_compiles(count: int, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    code, _, out = run(tmp_path, "".join(row(native, note='\\"ä\\\\?') for native in range(count)))
    assert code == 0
    source = tmp_path / "use.c"
    source.write_text(
        f'#include "{out}"\nint main(void) {{\n'
        f"  return cald_status_of(&cald_native_map, 2, NULL) == "
        f"{'CALD_KV_NO_CAPACITY' if count else 'CALD_INTERNAL'} ? 0 : 1;\n}}\n"
    )
    program = tmp_path / "use"
    strict = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *strict, *INCLUDES, str(source), "-o", str(program)], check=True)
    assert subprocess.run([str(program)]).returncode == 0
