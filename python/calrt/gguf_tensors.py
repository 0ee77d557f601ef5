# SPDX-License-Identifier: Apache-2.0
"""Tensor data of a GGUF file as float32: reads a tensor in pieces and undoes its block quantisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from calrt.gguf import GgufError, TensorInfo

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_PIECE = 1 << 21  # elements a piece holds at most (rounded to whole blocks): bounds memory at a few MiB


def _halves(block: Bytes, start: int) -> F32:
    """The float16 at byte `start` of every block, as a column of float32."""
    return np.ascontiguousarray(block[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(block: Bytes, start: int) -> npt.NDArray[np.uint8]:
    """32 four-bit numbers per block: the low halves of 16 bytes, then their high halves."""
    packed = block[:, start : start + 16]
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _from_f32(raw: Bytes) -> F32:
    return raw.view("<f4").astype(np.float32, copy=False)


def _from_f16(raw: Bytes) -> F32:
    return raw.view("<f2").astype(np.float32)


def _from_bf16(raw: Bytes) -> F32:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _from_q8_0(raw: Bytes) -> F32:
    block = raw.reshape(-1, 34)
    return (_halves(block, 0) * block[:, 2:].view(np.int8)).reshape(-1)


def _from_q4_0(raw: Bytes) -> F32:
    block = raw.reshape(-1, 18)
    centred = _nibbles(block, 2).view(np.int8) - np.int8(8)
    values: F32 = _halves(block, 0) * centred
    return values.reshape(-1)


def _from_q4_1(raw: Bytes) -> F32:
    block = raw.reshape(-1, 20)
    return (_halves(block, 0) * _nibbles(block, 4) + _halves(block, 2)).reshape(-1)


_DECODERS: dict[str, Callable[[Bytes], F32]] = {
    "F32": _from_f32,
    "F16": _from_f16,
    "BF16": _from_bf16,
    "Q8_0": _from_q8_0,
    "Q4_0": _from_q4_0,
    "Q4_1": _from_q4_1,
}
SUPPORTED_TYPES = tuple(_DECODERS)


def check_supported(tensor: TensorInfo) -> None:
    """Raises `GgufError` naming tensor, type and the supported types unless the tensor can be decoded."""
    if tensor.type.name not in _DECODERS:
        raise GgufError(
            f"tensor {tensor.name!r} has type {tensor.type.name}; supported: {', '.join(SUPPORTED_TYPES)}"
        )


def decode(type_name: str, raw: Bytes) -> F32:
    """Whole blocks of one type, as bytes [n], to float32 [elements]. May return a view of `raw`."""
    return _DECODERS[type_name](raw)


def raw_pieces(file: BinaryIO, tensor: TensorInfo) -> Iterator[Bytes]:
    """The tensor's bytes in pieces of whole blocks, in order. Raises `GgufError` if the file ends early."""
    check_supported(tensor)
    per_piece = _PIECE // tensor.type.block * tensor.type.block_bytes
    file.seek(tensor.offset)
    left = tensor.nbytes
    while left:
        data = file.read(min(per_piece, left))
        if len(data) != min(per_piece, left):
            raise GgufError(f"tensor {tensor.name!r}: the file ended {left - len(data):,} bytes early")
        left -= len(data)
        yield np.frombuffer(data, np.uint8)


def pieces(file: BinaryIO, tensor: TensorInfo) -> Iterator[F32]:
    """The tensor's elements as float32 pieces, in order."""
    for raw in raw_pieces(file, tensor):
        yield decode(tensor.type.name, raw)


def load(file: BinaryIO, tensor: TensorInfo) -> F32:
    """The whole tensor as float32 in its shape (slowest dimension first); owned by the caller."""
    out = np.empty(tensor.elements, np.float32)
    at = 0
    for piece in pieces(file, tensor):
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out.reshape(tensor.shape)


def to_bf16_bits(values: F32) -> npt.NDArray[Any]:
    """float32 [n] to BF16 bit patterns (uint16), rounded to nearest even. The input must be finite."""
    bits = values.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)
