# SPDX-License-Identifier: Apache-2.0
"""The shape of the source tree as a test: arrows, file sizes, and things that must not be in it."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# What each native layer may include, besides itself and the standard library (DESIGN §2).
ARROWS = {
    "base": set(),
    "layout": {"base"},
    "kv": {"base"},
    "sampling": {"base", "layout"},
    "calrt": {"base", "layout", "layers"},
    "engine": {"base", "layout", "kv", "sampling", "calrt"},
    "drivers": {"base", "layout"},
    "layers": {"base", "layout"},
    "bind": {"base", "layout", "kv", "sampling", "calrt", "engine"},
}
# The C headers of the ABI, which everyone may include, found below <layer>/include.
ABI = {"calrt/driver.h", "calrt/driver_entries.inc", "calrt/status.inc"}


def native_sources(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".h", ".cpp", ".c", ".inc"}]


def tracked(*suffixes: str) -> list[pathlib.Path]:
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    return [ROOT / name for name in names if name.endswith(suffixes) and (ROOT / name).is_file()]


@pytest.mark.parametrize("layer", sorted(ARROWS))
def test_native_arrows_go_one_way(layer: str) -> None:
    wrong = []
    for path in native_sources(CSRC / layer):
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            if name in ABI or "/" not in name:
                continue
            target = name.split("/")[0]
            if target not in ARROWS[layer] | {layer}:
                wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert wrong == []


def test_the_abi_header_includes_only_the_status_list() -> None:
    text = (CSRC / "calrt/include/calrt/driver.h").read_text()
    assert set(re.findall(r"#\s*include\s+[<\"]([^>\"]+)", text)) == {
        "stddef.h",
        "stdint.h",
        "calrt/status.inc",
    }


def imports(path: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add("." * node.level + node.module)
    return found


def test_the_core_never_imports_the_server() -> None:
    for path in (ROOT / "python/calrt").glob("*.py"):
        if path.name in {"cli.py"}:
            continue  # `calrt serve` hands over to the server
        for name in imports(path):
            assert not name.lstrip(".").startswith(("serve", "calrt.serve")), f"{path.name} imports {name}"


def test_files_are_a_sittings_read() -> None:
    long = {}
    for path in tracked(".py", ".pyi", ".h", ".cpp", ".c", ".inc"):
        lines = len(path.read_text().splitlines())
        if lines > 500:
            long[str(path.relative_to(ROOT))] = lines
    assert long == {}


def test_nothing_in_the_native_code_can_end_the_process() -> None:
    deadly = re.compile(r"\b(std::abort|abort|assert|std::terminate|std::exit|_exit|quick_exit|exit)\s*\(")
    wrong = []
    for path in native_sources(CSRC):
        if "tests" in path.parts:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("//")[0]
            if deadly.search(code) and "static_assert" not in code and not code.lstrip().startswith("*"):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert wrong == []


def test_no_fast_math() -> None:
    for path in [ROOT / "CMakeLists.txt", *CSRC.rglob("CMakeLists.txt"), *CSRC.rglob("*.cmake")]:
        code = re.sub(r"#.*", "", path.read_text())
        assert "fast-math" not in code, path


def test_no_machine_paths_or_registry_hosts() -> None:
    # Spelled so that this file does not match itself.
    folders = r"(^|[^a-zA-Z0-9_.])/(" + r"work|root|farm|home)/[a-z.]"
    bad = re.compile(folders + r"|index-" + r"url|/tm" + r"p/[a-z]+/")
    wrong = []
    texts = (".py", ".pyi", ".h", ".cpp", ".c", ".md", ".toml", ".txt", ".yml", ".json", "Makefile", "run")
    for path in tracked(*texts):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if bad.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert wrong == []
