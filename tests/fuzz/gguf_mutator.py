# SPDX-License-Identifier: Apache-2.0
"""Changes a GGUF file by its parts: keys, values and tensor rows move, the file around them stays whole."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from calrt.gguf import GgufError, parse_gguf
from tiny_gguf import metadata_bytes, string_bytes

NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    31,
    32,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**63,
    2**64 - 1,
)
VALUES: tuple[Any, ...] = (
    *(-1, 0.0, -1.5, 1e38, float("nan"), float("inf"), True, False, "", "llama", "gpt2", "default", "\u2581"),
    *("<0x0A>", "<0x+A>", "<0xZZ>", "a" * 2000, [], ["a"], ["", ""], ["a b", "b"], ["<0x00>"] * 8),
    *(np.zeros(0, np.float32), np.full(8, np.nan, np.float32), np.full(8, 2**64 - 1, np.uint64)),
    *(np.full(8, -1, np.int8), np.full(8, 3, np.int32), np.full(8, 6, np.int32), np.full(8, 1e300)),
)

Row = tuple[bytes, list[int], int, int]  # name, dimensions, type number, offset


def mutated(data: bytes, seed: int) -> bytes | None:
    """A neighbour of `data`; None when it is no GGUF file to begin with."""
    try:
        head = parse_gguf(data)
    except GgufError:
        return None
    pick = random.Random(seed)
    values = dict(head.metadata)
    rows = _rows(data)
    for _ in range(pick.randint(1, 3)):
        pick.choice(_CHANGES)(values, rows, pick)
    body = data[head.data_offset :]
    counts = [len(rows), len(values)]
    if pick.random() < 0.05:
        counts[pick.randrange(2)] = pick.choice(NUMBERS)
    table = b"".join(
        string_bytes(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", kind, offset)
        for name, dims, kind, offset in rows
    )
    start = b"GGUF" + struct.pack("<IQQ", head.version, *counts) + metadata_bytes(values) + table
    return start + bytes(-len(start) % head.alignment) + body


def _rows(data: bytes) -> list[Row]:
    """The tensor table as it is written, dimensions fastest first and offsets from the data's start."""
    head = parse_gguf(data)
    kinds = {kind.name: number for number, kind in _types()}
    return [
        (t.name.encode(), list(t.shape[::-1]), kinds[t.type.name], t.offset - head.data_offset)
        for t in head.tensors.values()
    ]


def _types() -> list[tuple[int, Any]]:
    from calrt.gguf import TENSOR_TYPES

    return list(TENSOR_TYPES.items())


def _replace(values: dict[str, Any], rows: list[Row], pick: random.Random) -> None:
    if values:
        values[pick.choice(list(values))] = pick.choice((*VALUES, *NUMBERS))


def _transplant(values: dict[str, Any], rows: list[Row], pick: random.Random) -> None:
    if values:
        keys = list(values)
        values[pick.choice(keys)] = values[pick.choice(keys)]


def _drop(values: dict[str, Any], rows: list[Row], pick: random.Random) -> None:
    if values:
        del values[pick.choice(list(values))]


def _item(values: dict[str, Any], rows: list[Row], pick: random.Random) -> None:
    """One item of an array changes, comes or goes."""
    lists = [key for key, value in values.items() if isinstance(value, list) and value]
    if not lists:
        return
    key = pick.choice(lists)
    items = list(values[key])
    at = pick.randrange(len(items))
    texts = [value for value in VALUES if isinstance(value, str)] + items
    change: Callable[[], Any] = pick.choice(
        (
            lambda: items.__setitem__(at, pick.choice(texts)),
            lambda: items.insert(at, pick.choice(texts)),
            lambda: items.pop(at),
            lambda: items.__setitem__(at, items[at][: len(items[at]) // 2]),
        )
    )
    change()
    values[key] = items


def _tensor(values: dict[str, Any], rows: list[Row], pick: random.Random) -> None:
    """One row of the tensor table changes, comes or goes."""
    if not rows:
        return
    at = pick.randrange(len(rows))
    name, dims, kind, offset = rows[at]
    dims = list(dims)
    what = pick.randrange(6)
    if what == 0:
        dims[pick.randrange(len(dims))] = pick.choice(NUMBERS)
    elif what == 1:
        dims = dims[:-1] if len(dims) > 1 else [*dims, 1]
    elif what == 2:
        kind = pick.choice([number for number, _ in _types()])
    elif what == 3:
        offset = pick.choice((*NUMBERS, rows[pick.randrange(len(rows))][3]))
    elif what == 4:
        name = pick.choice((rows[pick.randrange(len(rows))][0], b"", b"\xff"))
    else:
        rows.pop(at)
        return
    rows[at] = (name, dims, kind, offset)


_CHANGES = (_replace, _transplant, _drop, _item, _item, _tensor)
