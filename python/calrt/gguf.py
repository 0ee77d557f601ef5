# SPDX-License-Identifier: Apache-2.0
"""Reads the metadata and the tensor table of a GGUF file, fast and without trusting it.

Only the head of a file is read; tensor data stays on disk until `gguf_tensors` asks for it. Every count,
size and offset is compared with the bytes that are really there before anything is allocated for it.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from calrt.regular_file import open_regular

MAGIC = b"GGUF"
METADATA_LIMIT = 128 << 20  # bytes of metadata and tensor table; the largest known vocabularies need 20 MiB
_FIRST_READ = 4 << 20
_MAX_ELEMENTS = 1 << 48
_MAX_DIM = (1 << 31) - 1

Value = int | float | bool | str | list[str] | npt.NDArray[Any]


class GgufError(ValueError):
    """A GGUF file is damaged, or holds something calrt cannot use. The text names the key or tensor."""


class TensorType(NamedTuple):
    """How a tensor type packs its elements: `block` elements in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


# All types with a published size, so that a file's table can be checked even where calrt refuses a type.
TENSOR_TYPES: dict[int, TensorType] = {
    number: TensorType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table. `shape` is slowest dimension first, `offset` from the file's start."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class GgufMetadata(Mapping[str, Value]):
    """The key/value pairs of a file. Numeric arrays are numpy arrays, string arrays are lists.

    The typed getters return `default` when the key is absent (raise `GgufError` without a default) and
    raise `GgufError` naming key and type when the value has another type.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _typed(self, key: str, default: Any, wanted: str, fits: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            if default is not _REQUIRED:
                return default
            raise GgufError(f"metadata key {key!r} is missing: wanted {wanted}")
        if not fits(value):
            raise GgufError(f"metadata key {key!r}: wanted {wanted}, found {_describe(value)}")
        return value

    def uint(self, key: str, default: Any = None) -> Any:
        """A non-negative integer below 2**53."""

        def fits(v: Any) -> bool:
            return isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 53

        return self._typed(key, default, "an unsigned integer", fits)

    def real(self, key: str, default: Any = None) -> Any:
        """A finite float."""

        def fits(v: Any) -> bool:
            return isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < float("inf")

        return self._typed(key, default, "a finite number", fits)

    def text(self, key: str, default: Any = None) -> Any:
        """A string."""
        return self._typed(key, default, "a string", lambda v: isinstance(v, str))

    def flag(self, key: str, default: Any = None) -> Any:
        """A boolean."""
        return self._typed(key, default, "a boolean", lambda v: isinstance(v, bool))

    def texts(self, key: str, default: Any = None) -> Any:
        """A list of strings."""
        return self._typed(key, default, "an array of strings", lambda v: isinstance(v, list))

    def numbers(self, key: str, default: Any = None) -> Any:
        """A one-dimensional numpy array."""
        return self._typed(key, default, "an array of numbers", lambda v: isinstance(v, np.ndarray))

    def required(self, key: str, kind: str) -> Any:
        """The value of a key that must be there; `kind` names one of the getters above."""
        getter = {"uint": self.uint, "real": self.real, "text": self.text, "texts": self.texts}[kind]
        return getter(key, _REQUIRED)


@dataclass(frozen=True)
class GgufFile:
    """What the head of a GGUF file says. `metadata_bytes` is the key/value section as the file has it."""

    version: int
    metadata: GgufMetadata
    metadata_count: int
    metadata_bytes: bytes
    tensors: Mapping[str, TensorInfo]
    alignment: int
    data_offset: int
    size: int


_REQUIRED: Any = object()
_UINT8, _INT8, _UINT16, _INT16, _UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = range(10)
_UINT64, _INT64, _FLOAT64 = 10, 11, 12
_SCALARS = {
    _UINT8: ("B", 1),
    _INT8: ("b", 1),
    _UINT16: ("H", 2),
    _INT16: ("h", 2),
    _UINT32: ("I", 4),
    _INT32: ("i", 4),
    _FLOAT32: ("f", 4),
    _UINT64: ("Q", 8),
    _INT64: ("q", 8),
    _FLOAT64: ("d", 8),
}


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    return f"{type(value).__name__} {str(value)[:60]!r}"


class _NeedMore(Exception):
    """The bytes read so far end before `upto`, but the file goes on."""

    def __init__(self, upto: int) -> None:
        self.upto = upto


class _Head:
    """A cursor over the first bytes of a file of `size` bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.pos = 0

    def need(self, count: int, what: str) -> int:
        """Moves past `count` bytes and returns where they start."""
        start = self.pos
        end = start + count
        if end > self.size:
            raise GgufError(
                f"{what} needs {count:,} bytes at offset {start:,}, the file has {self.size:,}: truncated?"
            )
        if end > len(self.data):
            raise _NeedMore(end)
        self.pos = end
        return start

    def number(self, code: str, width: int, what: str) -> Any:
        return struct.unpack_from("<" + code, self.data, self.need(width, what))[0]

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.number("Q", 8, f"length of {what}")
        if limit is not None and length > limit:
            raise GgufError(f"{what} is {length:,} bytes long, at most {limit:,} allowed")
        start = self.need(length, what)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise GgufError(f"{what} at offset {start:,} is not UTF-8 (byte {error.start})") from None

    def strings(self, count: int, what: str) -> list[str]:
        # The hot loop: a vocabulary of 150,000 tokens must load in a fraction of a second.
        data, pos, limit = self.data, self.pos, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        out: list[str] = []
        append = out.append
        start = pos
        try:
            for _ in range(count):
                start = pos + 8
                if start > limit:
                    break
                pos = start + unpack(data, start - 8)[0]
                if pos > limit:
                    break
                append(data[start:pos].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise GgufError(f"{what}[{len(out)}] is not UTF-8 (byte {error.start})") from None
        if len(out) < count:
            self.need(
                max(start, pos) - self.pos, f"{what}[{len(out)}]"
            )  # always raises: that is past `limit`
        self.pos = pos
        return out

    def value(self, kind: int, key: str) -> Value:
        what = f"metadata key {key!r}"
        if kind in _SCALARS:
            code, width = _SCALARS[kind]
            number: int | float = self.number(code, width, what)
            return number
        if kind == _BOOL:
            byte = self.number("B", 1, what)
            if byte > 1:
                raise GgufError(f"{what}: boolean is {byte}, wanted 0 or 1")
            return bool(byte)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(key)
        raise GgufError(f"{what} has value type {kind}; GGUF knows 0 to 12")

    def array(self, key: str) -> Value:
        what = f"metadata key {key!r}"
        kind = self.number("I", 4, what)
        count = self.number("Q", 8, what)
        if kind == _STRING:
            smallest = 8
        elif kind == _BOOL:
            smallest = 1
        elif kind in _SCALARS:
            smallest = _SCALARS[kind][1]
        else:
            raise GgufError(f"{what} is an array of value type {kind}; numbers and strings are supported")
        if count > (self.size - self.pos) // smallest:
            raise GgufError(
                f"{what} declares {count:,} elements of at least {smallest} bytes, "
                f"but only {self.size - self.pos:,} bytes follow"
            )
        if kind == _STRING:
            return self.strings(count, what)
        dtype = "?" if kind == _BOOL else "<" + _SCALARS[kind][0]
        start = self.need(count * smallest, what)
        numbers: npt.NDArray[Any] = np.frombuffer(self.data, np.dtype(dtype), count, start).copy()
        return numbers


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Reads the head of the GGUF file at `path`.

    Raises `GgufError` when the file is not a sound GGUF of version 2 or 3, `OSError` when it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        wanted = min(size, _FIRST_READ)
        while True:
            file.seek(0)
            data = file.read(wanted)
            if len(data) < wanted:
                raise GgufError(f"{Path(path).name} became shorter while it was read")
            try:
                return parse_gguf(data, size)
            except _NeedMore as more:
                if more.upto > METADATA_LIMIT:
                    raise GgufError(
                        f"metadata needs {more.upto:,} bytes, more than the limit of {METADATA_LIMIT:,}"
                    ) from None
                wanted = min(size, max(2 * wanted, more.upto))
            except GgufError as error:
                raise GgufError(f"{Path(path).name}: {error}") from None


def parse_gguf(data: bytes, size: int | None = None) -> GgufFile:
    """Parses a GGUF head held in memory. `size` is the length of the whole file (default: of `data`)."""
    head = _Head(data, len(data) if size is None else size)
    if head.size < 24 or data[:4] != MAGIC:
        raise GgufError(f"not a GGUF file: it starts with {data[:4]!r} and has {head.size:,} bytes")
    head.pos = 4
    version = head.number("I", 4, "version")
    if version not in (2, 3):
        hint = " (big-endian file?)" if version in (2 << 24, 3 << 24) else ""
        raise GgufError(f"GGUF version {version}{hint}; versions 2 and 3, little endian, are supported")
    tensor_count = head.number("Q", 8, "tensor count")
    key_count = head.number("Q", 8, "metadata count")
    for count, least, what in ((key_count, 13, "metadata keys"), (tensor_count, 32, "tensors")):
        if count > head.size // least:
            raise GgufError(f"{count:,} {what} declared, more than a file of {head.size:,} bytes can hold")

    values: dict[str, Value] = {}
    start = head.pos
    for index in range(key_count):
        key = head.string(f"metadata key number {index}", limit=65535)
        if key in values:
            raise GgufError(f"metadata key {key!r} appears twice")
        values[key] = head.value(head.number("I", 4, f"type of {key!r}"), key)
    metadata = GgufMetadata(values)
    metadata_bytes = data[start : head.pos]

    alignment = metadata.uint("general.alignment", 32)
    if not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is {alignment}; wanted a power of two up to 1,048,576")
    rows = [_tensor_row(head, index) for index in range(tensor_count)]
    data_offset = -(-head.pos // alignment) * alignment
    tensors = _place(rows, data_offset, alignment, head.size)
    return GgufFile(
        version=version,
        metadata=metadata,
        metadata_count=key_count,
        metadata_bytes=metadata_bytes,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        size=head.size,
    )


def _tensor_row(head: _Head, index: int) -> TensorInfo:
    """One row; its offset still counts from the start of the data section."""
    name = head.string(f"name of tensor number {index}", limit=1024)
    rank = head.number("I", 4, f"rank of tensor {name!r}")
    if not 1 <= rank <= 4:
        raise GgufError(f"tensor {name!r} has {rank} dimensions; 1 to 4 are supported")
    dims = struct.unpack_from(f"<{rank}Q", head.data, head.need(8 * rank, f"shape of tensor {name!r}"))
    elements = 1
    for dim in dims:
        elements *= dim
        if not 1 <= dim <= _MAX_DIM or elements > _MAX_ELEMENTS:
            raise GgufError(
                f"tensor {name!r} has shape {list(dims)}: a dimension or the product is out of range"
            )
    number = head.number("I", 4, f"type of tensor {name!r}")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        raise GgufError(f"tensor {name!r} has type number {number}, which calrt does not know")
    if dims[0] % kind.block:
        raise GgufError(
            f"tensor {name!r}: rows of {dims[0]} are not whole {kind.name} blocks of {kind.block}"
        )
    offset = head.number("Q", 8, f"offset of tensor {name!r}")
    return TensorInfo(name, kind, tuple(reversed(dims)), offset, elements // kind.block * kind.block_bytes)


def _place(rows: Sequence[TensorInfo], base: int, alignment: int, size: int) -> dict[str, TensorInfo]:
    """Checks names, alignment, extent and overlap; returns the rows with offsets from the file's start."""
    tensors: dict[str, TensorInfo] = {}
    for row in rows:
        if row.name in tensors:
            raise GgufError(f"tensor {row.name!r} appears twice")
        if row.offset % alignment:
            raise GgufError(f"tensor {row.name!r}: offset {row.offset:,} is not a multiple of {alignment}")
        start = base + row.offset
        if start + row.nbytes > size:
            raise GgufError(
                f"tensor {row.name!r} ends at byte {start + row.nbytes:,}, the file has {size:,}: truncated?"
            )
        tensors[row.name] = TensorInfo(row.name, row.type, row.shape, start, row.nbytes)
    previous: TensorInfo | None = None
    for row in sorted(tensors.values(), key=lambda t: t.offset):
        if previous is not None and previous.offset + previous.nbytes > row.offset:
            raise GgufError(f"tensors {previous.name!r} and {row.name!r} overlap at byte {row.offset:,}")
        previous = row
    return tensors
