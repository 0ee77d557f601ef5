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
    "calrt": {"base", "layout", "layers", "kv"},  # kv: its arithmetic, for the checks of packages
    "engine": {"base", "layout", "kv", "sampling", "calrt"},
    "drivers": {"base", "layout"},
    "layers": {"base", "layout"},
    "conformance": {"base", "layout", "calrt"},
    "isolate": {"base", "calrt", "layers"},
    "bind": {"base", "layout", "kv", "sampling", "calrt", "engine"},
}
# The C headers of the ABI, which everyone may include, found below <layer>/include.
ABI = {"calrt/driver.h", "calrt/driver_entries.inc", "calrt/status.inc", "calrt/status_map.h"}


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
    # The contract with drivers is one file, so that a porter has one to take and one to read; a native
    # module has one stub, its table of contents.
    one_file = {"driver.h", "_core.pyi"}
    long = {}
    for path in tracked(".py", ".pyi", ".h", ".cpp", ".c", ".inc"):
        lines = len(path.read_text().splitlines())
        if lines > 500 and path.name not in one_file:
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


@pytest.mark.parametrize("layer", ["calrt", "engine"])
def test_locks_have_ranks(layer: str) -> None:
    """base/ranked_mutex.h: a lock without a rank is outside the one order of locks, and unchecked."""
    bare = re.compile(r"\bstd::(\w*mutex|condition_variable\w*)\b")
    wrong = []
    for path in native_sources(CSRC / layer):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if bare.search(line.split("//")[0]):
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


# How a device lays its tensors out is data: a tile size that stands in the code is a guess about one device.
LAYOUT_CONSTANT = re.compile(
    r"\bD0\b"  # the name of the constant itself
    r"|\b(divisor|modulus)\s*([=!<>]=|[=<>*/%])\s*([2-9]|[1-9]\d)"  # an axis and a number
    r"|\btiled_layout\([^;]*\b([2-9]|[1-9]\d+)\b[^;]*;"  # a tile made of numbers
    r"|\bcald_axis\b[^;{}]*\{[^}]*\b([2-9]|[1-9]\d+)\b"
    r"|[\"']?\btile[\"']?\s*[:=]\s*[{(][^})]*\bsize\b[\"']?\s*[:=]\s*\d"  # tile: {axis, size: 16}
    r"|\btile_(size|axis)\s*[:=]\s*[1-9]"
)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("constexpr int D0 = 16;", True),
        ("axis.modulus = 16;", True),
        ("if (axis.divisor == 8) {", True),
        ("return tiled_layout(dtype, shape, 1, 16, order);", True),
        ("cald_axis axis{1, 0, 1, 32, 32, 2};", True),
        ('{"kind": "tiled", "tile": {"axis": 1, "size": 16}}', True),
        ("first.divisor <= 1 && first.modulus == 0", False),
        ("return tiled_layout(io.dtype, shape, layout.tile_axis, layout.tile_size, order);", False),
        ("cald_axis axis{dim, 0, 1, 0, shape[dim], stride};", False),
    ],
)
def test_the_rule_for_layout_constants_knows_them(line: str, is_one: bool) -> None:
    assert bool(LAYOUT_CONSTANT.search(line)) == is_one


def test_no_layout_constant_outside_the_layout_layer() -> None:
    wrong = []
    folders = [CSRC / layer for layer in ARROWS if layer != "layout"]
    sources = [path for folder in folders for path in native_sources(folder)]
    for path in [*sources, *(ROOT / "python").rglob("*.py")]:
        comment = r"#.*" if path.suffix == ".py" else r"//.*|/\*[\s\S]*?\*/"
        # As long as it was, so that the line numbers are those of the file.
        code = re.sub(comment, lambda match: "\n" * match.group().count("\n"), path.read_text())
        for match in LAYOUT_CONSTANT.finditer(code):
            number = code.count("\n", 0, match.start()) + 1
            wrong.append(f"{path.relative_to(ROOT)}:{number}: {match.group()[:80]}")
    assert wrong == []
