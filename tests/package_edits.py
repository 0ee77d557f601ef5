# SPDX-License-Identifier: Apache-2.0
"""How tests damage a package: each function gives or makes one change to a Bench."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from package_bench import Bench

Damage = Callable[[Bench], object]


class Case(NamedTuple):
    check: str
    name: str
    damage: Damage
    message: str = ""  # a regular expression the finding's message must hold
    package: str = "tiny"


def put(path: str, value: Any) -> Damage:
    """Sets a value of the manifest by JSON pointer."""

    def damage(b: Bench) -> None:
        *parents, last = path.strip("/").split("/")
        at: Any = b.manifest
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        at[int(last) if isinstance(at, list) else last] = value

    return damage


def drop(path: str) -> Damage:
    def damage(b: Bench) -> None:
        *parents, last = path.strip("/").split("/")
        at: Any = b.manifest
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        del at[int(last) if isinstance(at, list) else last]

    return damage


def text(pattern: str, to: str) -> Damage:
    """Replaces the first match in the manifest's text."""
    return lambda b: b.replace(pattern, to)


def path_of(name: str, path: str) -> Damage:
    return lambda b: b.artifact(name).update(path=path)


def all_of(*damages: Damage) -> Damage:
    return lambda b: [damage(b) for damage in damages]


# ---- files ----------------------------------------------------------------------------------------


def remove(name: str) -> Damage:
    return lambda b: b.file(name).unlink()


def manifest_as_directory(b: Bench) -> None:
    (b.directory / "manifest.json").unlink()
    (b.directory / "manifest.json").mkdir()


def symlink_file(b: Bench) -> None:
    path = b.file("weights")
    os.rename(path, b.directory / "elsewhere.bin")
    path.symlink_to("elsewhere.bin")


def symlink_parent(b: Bench) -> None:
    os.rename(b.directory / "golden", b.directory / "elsewhere")
    (b.directory / "golden").symlink_to(b.directory / "elsewhere")


def replace_by(make: Callable[[str], object]) -> Damage:
    def damage(b: Bench) -> None:
        b.file("vocab").unlink()
        make(str(b.file("vocab")))

    return damage


def truncate(b: Bench) -> None:
    os.truncate(b.file("weights"), b.file("weights").stat().st_size - 64)


def append_byte(b: Bench) -> None:
    with b.file("weights").open("ab") as file:
        file.write(b"\0")


def flip_bit(name: str) -> Damage:
    def damage(b: Bench) -> None:
        data = bytearray(b.file(name).read_bytes())
        data[len(data) // 2] ^= 1
        b.file(name).write_bytes(data)

    return damage


def add_graph_file(b: Bench) -> None:
    b.add("graph02", "payload/graph-02.bin", "calbin.graph", b"x" * 64)


# ---- weights --------------------------------------------------------------------------------------


def swap_rows(b: Bench) -> None:
    rows = b.manifest["weights"]["rows"]
    rows[0], rows[1] = rows[1], rows[0]


def two_rows_one_offset(b: Bench) -> None:
    rows = b.manifest["weights"]["rows"]
    rows[1][3] = rows[0][3]


def gap_in_the_middle(b: Bench) -> None:
    rows = b.manifest["weights"]["rows"]
    at = rows[3][3]
    data = b.file("weights").read_bytes()
    b.file("weights").write_bytes(data[:at] + bytes(4096) + data[at:])
    b.pin("weights")
    for row in rows[3:]:
        row[3] += 4096


def gap_at_the_end(b: Bench) -> None:
    with b.file("weights").open("ab") as file:
        file.write(bytes(64))
    b.pin("weights")


def set_row(name: str, column: int, change: Callable[[Any], Any]) -> Damage:
    def damage(b: Bench) -> None:
        b.row(name)[column] = change(b.row(name)[column])

    return damage


def drop_row(name: str) -> Damage:
    return lambda b: b.manifest["weights"]["rows"].remove(b.row(name))


# ---- graphs ---------------------------------------------------------------------------------------


def drop_io(graph: str, role: str) -> Damage:
    def damage(b: Bench) -> None:
        for side in ("inputs", "outputs"):
            b.graph(graph)[side] = [io for io in b.graph(graph)[side] if io["role"] != role]

    return damage


def set_io(graph: str, role: str, **fields: Any) -> Damage:
    return lambda b: b.io(graph, role).update(fields)


def set_graph(graph: str, **fields: Any) -> Damage:
    return lambda b: b.graph(graph).update(fields)


def layout(graph: str, role: str, **fields: Any) -> Damage:
    return set_io(graph, role, layout=fields)


def two_logits(b: Bench) -> None:
    b.graph("decode")["outputs"] *= 2


def huge_dims(b: Bench) -> None:
    b.io("decode", "logits")["shape"] = [2**31 - 1] * 3
