# SPDX-License-Identifier: Apache-2.0
"""The GGUF reader: what it reads, and that nothing hostile gets past it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calrt import gguf as gguf_module
from calrt.gguf import GgufError, parse_gguf, read_gguf
from calrt.gguf_tensors import check_supported, decode, load, pieces
from shared_files import smollm2, stories
from tiny_gguf import TYPE_NUMBERS, encode, gguf_bytes, llama_metadata, string_bytes, value_bytes

BLOCKS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]


def head(
    *, version: int = 3, tensors: int = 0, keys: int = 0, body: bytes = b"", magic: bytes = b"GGUF"
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + body


def row(
    name: str = "t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims) if rank is None else rank, *dims)
    return string_bytes(name) + shape + struct.pack("<IQ", kind, offset)


def with_rows(*rows: bytes, data: int = 64) -> bytes:
    out = head(tensors=len(rows), body=b"".join(rows))
    return out + bytes(-len(out) % 32) + bytes(data)


# ---- reading --------------------------------------------------------------------------------------


def test_every_value_type_comes_back() -> None:
    metadata: dict[str, Any] = {
        "flag": True,
        "off": False,
        "count": 7,
        "large": 1 << 40,
        "negative": -3,
        "real": 0.5,
        "text": "grüße 日本",
        "empty": "",
        "words": ["a", "", "日本", "x" * 300],
    }
    arrays = {f"array_{code}": np.arange(5).astype(code) for code in "<u1 <i2 <u4 <i8 <f4 <f8 ?".split()}  # noqa: SIM905
    parsed = parse_gguf(gguf_bytes({**metadata, **arrays}))
    for key, value in metadata.items():
        assert parsed.metadata[key] == value
        assert type(parsed.metadata[key]) is type(value)
    for key, value in arrays.items():
        found = parsed.metadata[key]
        assert isinstance(found, np.ndarray)
        assert found.dtype == value.dtype
        assert found.tolist() == value.tolist()
    assert len(parsed.metadata) == len(metadata) + len(arrays)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_tensor_table(version: int, alignment: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((3, 5), np.float32), rng.standard_normal((2, 4, 7), np.float32)
    path = tmp_path / "t.gguf"
    path.write_bytes(
        gguf_bytes(
            {"k": 1}, [("a", "F32", first), ("b", "F32", second)], version=version, alignment=alignment
        )
    )
    parsed = read_gguf(path)
    assert (parsed.version, parsed.alignment) == (version, alignment)
    assert list(parsed.tensors) == ["a", "b"]
    assert parsed.tensors["b"].shape == (2, 4, 7)
    assert parsed.tensors["b"].offset % alignment == 0
    with open(path, "rb") as file:
        np.testing.assert_array_equal(load(file, parsed.tensors["a"]), first)
        np.testing.assert_array_equal(load(file, parsed.tensors["b"]), second)


def test_a_head_longer_than_the_first_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_module, "_FIRST_READ", 24)
    words = [f"word{i}" for i in range(5000)]
    path = tmp_path / "t.gguf"
    path.write_bytes(
        gguf_bytes({"words": words, "numbers": np.arange(9000)}, [("a", "F32", np.ones(4, np.float32))])
    )
    parsed = read_gguf(path)
    assert parsed.metadata["words"] == words
    assert parsed.metadata["numbers"].sum() == sum(range(9000))  # type: ignore[union-attr]
    assert parsed.tensors["a"].nbytes == 16


def test_metadata_larger_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_module, "_FIRST_READ", 24)
    monkeypatch.setattr(gguf_module, "METADATA_LIMIT", 4096)
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf_bytes({"words": ["x" * 100] * 100}))
    with pytest.raises(GgufError, match=r"more than the limit of 4,096"):
        read_gguf(path)


def test_a_real_file() -> None:
    parsed = read_gguf(stories())
    assert len(parsed.tensors) == 48
    assert parsed.metadata.texts("tokenizer.ggml.tokens")[1] == "<s>"
    assert parsed.metadata.uint("llama.context_length") == 2048


def test_smollm2_vocabulary() -> None:
    parsed = read_gguf(smollm2())
    assert len(parsed.metadata.texts("tokenizer.ggml.tokens")) == 49152
    assert parsed.tensors["token_embd.weight"].shape == (49152, 576)


def test_typed_getters_name_the_key() -> None:
    meta = parse_gguf(gguf_bytes({"i": 1, "s": "x", "f": 1.5, "b": True, "n": -1, "l": ["a"]})).metadata
    assert meta.uint("i") == 1
    assert meta.uint("absent", 9) == 9
    for key, getter in [("s", meta.uint), ("b", meta.uint), ("n", meta.uint), ("i", meta.text)]:
        with pytest.raises(GgufError, match=rf"'{key}': wanted "):
            getter(key)
    for key, getter in [("s", meta.real), ("i", meta.flag), ("l", meta.numbers), ("s", meta.texts)]:
        with pytest.raises(GgufError, match=rf"'{key}': wanted "):
            getter(key)
    with pytest.raises(GgufError, match="'absent' is missing"):
        meta.required("absent", "uint")


# ---- hostile input --------------------------------------------------------------------------------

BAD = {
    "empty": (b"", "not a GGUF"),
    "short": (b"GGUF\x03\x00\x00\x00", "not a GGUF"),
    "magic": (head(magic=b"GGML"), "not a GGUF"),
    "version 1": (head(version=1), "version 1"),
    "version 4": (head(version=4), "version 4"),
    "big endian": (head(version=3 << 24), "big-endian"),
    "key count": (head(keys=1 << 63), "metadata keys declared"),
    "tensor count": (head(tensors=1 << 60), "tensors declared"),
    "key absent": (head(keys=1), "metadata key number 0 needs 8 bytes.*truncated"),
    "key length": (head(keys=1, body=struct.pack("<Q", 1 << 62) + bytes(40)), "at most 65,535"),
    "key past the end": (head(keys=1, body=struct.pack("<Q", 60000) + bytes(40)), "truncated"),
    "key not utf-8": (head(keys=1, body=string_bytes(b"\xff\xfe") + value_bytes(1)), "not UTF-8"),
    "key twice": (head(keys=2, body=2 * (string_bytes("k") + value_bytes(1))), "'k' appears twice"),
    "value type": (head(keys=1, body=string_bytes("k") + struct.pack("<IQ", 13, 0)), "value type 13"),
    "boolean": (head(keys=1, body=string_bytes("k") + struct.pack("<IB", 7, 2)), "boolean is 2"),
    "string past the end": (
        head(keys=1, body=string_bytes("k") + struct.pack("<IQ", 8, 1 << 63)),
        "key 'k' needs 9,223,372,036,854,775,808 bytes",
    ),
    "value not utf-8": (head(keys=1, body=string_bytes("k") + value_bytes(b"a\xc3(")), "'k'.*not UTF-8"),
    "value cut": (head(keys=1, body=string_bytes("kkkk") + struct.pack("<I", 10)), "'kkkk'.*truncated"),
    "array count": (
        head(keys=1, body=string_bytes("k") + struct.pack("<IIQ", 9, 4, 1 << 62)),
        "4,611,686,018,427,387,904 elements",
    ),
    "string array count": (
        head(keys=1, body=string_bytes("k") + struct.pack("<IIQ", 9, 8, 3) + bytes(23)),
        "3 elements",
    ),
    "string array element": (
        head(keys=1, body=string_bytes("k") + struct.pack("<IIQQQ", 9, 8, 2, 0, 1 << 63)),
        r"'k'\[1\].*truncated",
    ),
    "string array not utf-8": (
        head(keys=1, body=string_bytes("k") + value_bytes([b"ok", b"\x80"])),
        r"'k'\[1\] is not UTF-8",
    ),
    "nested array": (
        head(keys=1, body=string_bytes("k") + struct.pack("<IIQIQ", 9, 9, 1, 4, 0)),
        "array of value type 9",
    ),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), "general.alignment is 0"),
    "alignment 48": (gguf_bytes({"general.alignment": 48}), "general.alignment is 48"),
    "alignment 2**31": (gguf_bytes({"general.alignment": 1 << 31}), "general.alignment is 2147483648"),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), "'general.alignment': wanted"),
    "rank 0": (with_rows(row(dims=()) + bytes(8)), "0 dimensions"),
    "rank 5": (with_rows(row(dims=(1, 1, 1, 1, 1))), "5 dimensions"),
    "rank 2**32 - 1": (with_rows(row(rank=(1 << 32) - 1)), "4294967295 dimensions"),
    "dimension 0": (with_rows(row(dims=(4, 0))), "out of range"),
    "dimension 2**63": (with_rows(row(dims=(1 << 63, 1))), "out of range"),
    "product overflow": (with_rows(row(dims=(1 << 30, 1 << 30, 1 << 30))), "out of range"),
    "unknown type": (with_rows(row(kind=99)), "type number 99"),
    "half a block": (with_rows(row(dims=(40,), kind=8)), "rows of 40 are not whole Q8_0 blocks of 32"),
    "offset unaligned": (with_rows(row(offset=8)), "offset 8 is not a multiple of 32"),
    "offset past the end": (with_rows(row(offset=64)), "ends at byte 1,?[0-9]+, the file has"),
    "offset 2**64 - 32": (with_rows(row(offset=(1 << 64) - 32)), "truncated"),
    "too large": (with_rows(row(dims=(17,))), "truncated"),
    "name twice": (with_rows(row("a"), row("a", offset=32)), "'a' appears twice"),
    "overlap": (with_rows(row("a", (9,)), row("b", offset=32)), "'a' and 'b' overlap"),
    "same place": (with_rows(row("a"), row("b")), "overlap"),
}


@pytest.mark.parametrize("name", BAD)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    if name == "too large":
        data = data[:-1]
    with pytest.raises(GgufError, match=message):
        parse_gguf(data)
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=f"(?s)bad.gguf: .*{message}"):
        read_gguf(path)


def test_a_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes({"k": ["a", "b"], "n": 3}, [("a", "F32", np.ones(8, np.float32))])
    parse_gguf(whole)
    for length in range(len(whole)):
        with pytest.raises(GgufError):
            parse_gguf(whole[:length])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_never_escapes(data: st.DataObject) -> None:
    whole = bytearray(
        gguf_bytes(
            {**llama_metadata(), "words": ["ab", "c"], "scores": np.arange(4, dtype=np.float32)},
            [("a", "F32", np.ones((2, 8), np.float32)), ("b", "Q8_0", np.ones((1, 32), np.float32))],
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse_gguf(bytes(whole))
    except GgufError:
        return
    for tensor in parsed.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(whole)


# ---- dequantisation -------------------------------------------------------------------------------


def half(raw: bytes) -> float:
    return float(struct.unpack("<e", raw)[0])


def slow_decode(kind: str, raw: bytes) -> list[float]:
    """One number at a time, from the formats' definitions."""
    out: list[float] = []
    if kind == "F32":
        return [value for (value,) in struct.iter_unpack("<f", raw)]
    if kind == "F16":
        return [value for (value,) in struct.iter_unpack("<e", raw)]
    if kind == "BF16":
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        scale = half(block[:2])
        for i in range(32):
            if kind == "Q8_0":
                out.append(scale * struct.unpack("<b", block[2 + i : 3 + i])[0])
                continue
            byte = block[(2 if kind == "Q4_0" else 4) + i % 16]
            four = byte & 15 if i < 16 else byte >> 4
            out.append(
                scale * (four - 8) if kind == "Q4_0" else float(np.float32(scale * four)) + half(block[2:4])
            )
    return out


@pytest.mark.parametrize("kind", BLOCKS)
def test_decode_equals_a_scalar_reference(kind: str) -> None:
    rng = np.random.default_rng(2)
    raw = encode(kind, rng.standard_normal(32 * 50, np.float32))
    found = decode(kind, np.frombuffer(raw, np.uint8))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(slow_decode(kind, raw), np.float32))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_decode_of_arbitrary_bits(kind: str) -> None:
    rng = np.random.default_rng(3)
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]
    raw = rng.integers(0, 256, (200, size), np.uint8)
    raw[:, 1] &= 0x3B  # a finite, not too large half
    raw[:, 3] &= 0x3B if kind == "Q4_1" else 0xFF
    found = decode(kind, raw.reshape(-1))
    np.testing.assert_array_equal(found, np.array(slow_decode(kind, raw.tobytes()), np.float32))


@pytest.mark.parametrize("kind", BLOCKS)
def test_pieces_are_the_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calrt.gguf_tensors._PIECE", 64)
    values = np.random.default_rng(4).standard_normal((5, 96), np.float32)
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf_bytes({}, [("a", kind, values)]))
    tensor = read_gguf(path).tensors["a"]
    with open(path, "rb") as file:
        parts = list(pieces(file, tensor))
        assert len(parts) > 1
        np.testing.assert_array_equal(np.concatenate(parts).reshape(5, 96), load(file, tensor))


def test_unsupported_types_are_named() -> None:
    assert set(BLOCKS) == set(TYPE_NUMBERS)
    data = with_rows(row("blk.0.x", (256,), kind=12), data=256)
    with pytest.raises(GgufError, match=r"'blk.0.x' has type Q4_K; supported: F32, F16, BF16, Q8_0"):
        check_supported(parse_gguf(data).tensors["blk.0.x"])
