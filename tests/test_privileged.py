# SPDX-License-Identifier: Apache-2.0
"""The privileged plane stands apart: nothing of it works, and nothing that the server loads can reach it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import calrt
import calrt.privileged

_PRIVILEGED = "calrt.privileged"

CALLS: list[tuple[str, Callable[[calrt.privileged.Plane], object]]] = [
    ("registers", lambda plane: plane.read_register(0, 0)),
    ("registers", lambda plane: plane.write_register(0, 0, 1)),
    ("device_memory", lambda plane: plane.read_memory(0, 0, 16)),
    ("device_memory", lambda plane: plane.write_memory(0, 0, b"x")),
    ("reset", lambda plane: plane.reset()),
]


@pytest.mark.parametrize(("what", "call"), CALLS)
@pytest.mark.parametrize("privileged", [False, True])
def test_each_call_is_refused_naming_its_level(
    what: str, call: Callable[[calrt.privileged.Plane], object], privileged: bool
) -> None:
    with calrt.open("cpu", privileged=privileged, allow_unverified=True) as device:
        assert device.privileged == privileged
        with pytest.raises(calrt.UnsupportedError, match=f"{what} is C4 on cpu: ") as caught:
            call(calrt.privileged.Plane(device))
    assert ("privileged=True" in str(caught.value)) == (not privileged)


def test_it_is_off_by_default() -> None:
    with calrt.open("null") as device:
        assert not device.privileged
    with pytest.raises(calrt.InvalidArgumentError, match="privileged is 1"):
        calrt.open("null", privileged=1)  # type: ignore[arg-type]


def modules_of(package: str) -> list[str]:
    """Every module of a package, by its files."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = {package}
    for folder in spec.submodule_search_locations:
        for path in Path(folder).rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found.add(".".join((package, *(part for part in parts if part not in ("__init__", "__main__")))))
    return sorted(found)


def imports_of(name: str) -> set[str]:
    """calrt's modules that a module imports, wherever in its text; __import__ and import_module count too."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return set()
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level else base
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)  # a name that a call might import
    return {name for name in found if name.split(".")[0] == "calrt" and " " not in name}


def reachable(names: list[str], imports: Callable[[str], set[str]] = imports_of) -> set[str]:
    seen: set[str] = set()
    rest = list(names)
    while rest:
        name = rest.pop()
        if name not in seen:
            seen.add(name)
            rest.extend(imports(name))
    return seen


def exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def module_imports(name: str) -> set[str]:
    return {found for found in imports_of(name) if exists(found)}


def test_no_file_that_the_server_can_reach_imports_it() -> None:
    served = modules_of("calrt.serve")
    assert len(served) > 20
    found = reachable(served, module_imports)
    assert {"calrt.device", "calrt.model", "calrt.errors", "calrt.grounds"} <= found  # the walk does walk
    assert _PRIVILEGED not in found
    assert _PRIVILEGED in reachable(["test_privileged"], module_imports)  # and would have found it


def test_loading_all_of_the_server_does_not_load_it() -> None:
    code = (
        "import importlib, sys, calrt\n"
        f"for name in {modules_of('calrt.serve')!r}:\n"
        "    importlib.import_module(name)\n"
        f"assert 'calrt.device' in sys.modules and {_PRIVILEGED!r} not in sys.modules\n"
        f"import {_PRIVILEGED}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
