# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz corpora and the manifest's dictionary from the fixtures of the tests.

python tests/fuzz/make_corpus.py BUILD_DIR    (a build with the native tests)

Seeds are rewritten in place; inputs that fuzzing found stay beside them under names of their own.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from package_bench import build_standin  # noqa: E402
from tiny_gguf import bpe_metadata, gguf_bytes, llama_metadata, llama_tensors, spm_metadata  # noqa: E402

MANIFESTS = ROOT / "csrc/tests/fuzz/corpus/manifest"
BLOBS = ROOT / "csrc/tests/fuzz/corpus/kv_blob"
GGUFS = ROOT / "tests/fuzz/corpus/gguf"
SMALL = {"layers": 1, "embed": 4, "heads": 2, "kv_heads": 1, "ffn": 4}

Json = dict[str, Any]


def compact(manifest: Json) -> bytes:
    return json.dumps(manifest, separators=(",", ":")).encode()


def standin() -> Json:
    """The vendor-like package, its files replaced by p00 to p15 of the fuzz target's folder."""
    with tempfile.TemporaryDirectory() as folder:
        built = build_standin(Path(folder) / "standin")
        manifest: Json = json.loads((built / "manifest.json").read_text())
    manifest["artifacts"] = manifest["artifacts"][:16]
    for number, artifact in enumerate(manifest["artifacts"]):
        artifact.update(path=f"p{number:02}", bytes=64, sha256=None)
    return manifest


def manifest_seeds(fixture: str) -> Iterator[tuple[str, bytes]]:
    yield "fixture.json", fixture.encode()
    yield "standin.json", compact(standin())

    whole = json.loads(fixture)
    logits = whole["graphs"][0]["outputs"][0]
    logits["layout"] = {
        "kind": "tiled",
        "tile": {"axis": 1, "size": 16},
        "order": ["o", 0, "i"],
        "padded": None,
    }
    whole["graphs"][1]["inputs"][0] |= {"align": 128, "domains": ["host", "device"]}
    whole["graphs"][1]["inputs"][1]["layout"] = {"kind": "strided", "strides": [4], "bytes": 256}
    whole["graphs"][1]["inputs"][2]["layout"] = {"kind": "linear", "padded": [16]}
    yield "layouts.json", compact(whole)

    whole = json.loads(fixture)
    whole["artifacts"] += [
        {"id": name, "path": path, "role": f"golden.{name}", "media_type": "x", "bytes": 64, "sha256": None}
        for name, path in (("input", "p00"), ("output", "p01"))
    ]
    whole["golden"] = [
        {
            "name": "one",
            "graph": "prefill_t16",
            "load": {"lanes": 1, "cells": 64, "compute": "f32"},
            "inputs": [{"role": "tokens", "artifact": "input", "dtype": "i32", "shape": [16]}],
            "outputs": [{"role": "logits", "artifact": "output", "dtype": "f32", "shape": [16, 1]}],
        }
    ]
    whole["memory"]["regions"] = [{"id": "a"}, {"id": "b", "alias_of": "a"}]
    whole["versions"]["runtime"] = {"exact": "1.2"}
    yield "golden.json", compact(whole)

    yield (
        "escapes.json",
        b'{"manifest":"manifest-1","\\u00e9\\ud83d\\ude00\\/\\n~":"\\u0041\\"\\\\","k":["\xc3\xa9"]}',
    )
    yield "surrogate.json", b'{"manifest":"\\ud83d"}'
    yield "not_utf8.json", b'{"manifest":"\xff\xc0\x80"}'
    yield "zero.json", b'{"manifest":"\\u0000"}'
    yield "mark.json", b'\xef\xbb\xbf{"manifest":"manifest-1"}'
    yield "twice.json", b'{"a":1,"b":{"c":2,"c":3},"a":4}'
    yield "deep.json", b'{"a":' * 20 + b"1" + b"}" * 20
    yield "numbers.json", b"[-0,0.0,1E+2,1e400,-1e-400,18446744073709551616,9007199254740992]"


def dictionary() -> str:
    """Every field name and word of the manifest's grammar."""
    words: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            words.update(node.get("properties", {}) if isinstance(node.get("properties"), dict) else ())
            words.update(word for word in node.get("enum", ()) if isinstance(word, str))
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(json.loads((ROOT / "docs/manifest-1.schema.json").read_text()))
    return "".join(f'"\\"{word}\\""\n' for word in sorted(words))


def crc32c(data: bytes) -> int:
    """By its definition: division by the polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def blob(cells: int, tokens: list[int], data: bytes) -> bytes:
    """A state blob as docs/kv.md writes it, of at most one chunk."""
    length = -(-(148 + 8 * bool(cells) + 4 * len(tokens) + 16 * bool(data)) // 64) * 64
    header = b"CALKVST1" + struct.pack("<4I", 1, length, 0x01020304, 0) + bytes(range(64))
    header += struct.pack("<i3IQ", 2, 3, 4, 5, len(data) // cells if cells else 6)
    header += struct.pack("<6IQ", cells + 7, cells, 1, bool(cells), len(tokens), bool(data), len(data))
    header += struct.pack("<2I", 0, cells) * bool(cells) + struct.pack(f"<{len(tokens)}i", *tokens)
    header += struct.pack("<Q2I", 0, len(data), crc32c(data)) * bool(data)
    header = header.ljust(length - 4, b"\0")
    return header + struct.pack("<I", crc32c(header)) + data


def blob_seeds() -> Iterator[tuple[str, bytes]]:
    yield "empty", blob(0, [], b"")
    yield "golden", blob(2, [7, 300], bytes(range(1, 7)))
    yield "without_tokens", blob(5, [], bytes(range(160)))
    yield "full_header", blob(5, [2**31 - 1] * 5, bytes(range(160)))


def gguf_seeds() -> Iterator[tuple[str, bytes]]:
    spm = llama_metadata(**{**SMALL, "context": 64}) | spm_metadata(320)
    spm["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "t", "h", "th"]
    spm["tokenizer.ggml.token_type"] = np.array([2, 3, 3, 6, 1, 1, 1, 1], np.int32)
    yield "spm.gguf", gguf_bytes(_short(spm), llama_tensors(**SMALL, vocab=8))
    bpe = llama_metadata(**{**SMALL, "context": 64}) | bpe_metadata(272)
    bpe["tokenizer.ggml.unknown_token_id"] = 0  # eight tokens have no place for every letter
    bpe["tokenizer.ggml.merges"] = ['! "', '!" #']
    bpe["tokenizer.ggml.tokens"] = ["<|endoftext|>", "<|im_end|>", "!", '"', "#", '!"', '!"#', "e"]
    bpe["tokenizer.ggml.token_type"] = np.array([3, 3, 1, 1, 1, 1, 1, 4], np.int32)
    yield "bpe.gguf", gguf_bytes(_short(bpe), llama_tensors(**SMALL, vocab=8, tied=True), version=2)
    values = {
        "general.name": "every type",
        "a": 1, "b": -1, "c": 1.5, "d": True, "e": "text", "f": ["", "a", "\u00e9"], "g": 1 << 40,
        **{code: np.arange(3).astype(code) for code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")},
        "f4": np.ones(2, np.float32), "f8": np.ones(2, np.float64), "b1": np.ones(3, bool),
    }  # fmt: skip
    blocks = [
        (kind, kind, np.ones((2, 32), np.float32)) for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")
    ]
    yield "types.gguf", gguf_bytes(values, blocks, alignment=64)


def _short(metadata: Json) -> Json:
    """The vocabulary's first eight tokens: enough for a reader, and a seed of a kilobyte."""
    return {
        key: value[:8] if isinstance(value, (list, np.ndarray)) else value for key, value in metadata.items()
    }


def main() -> int:
    tool = Path(sys.argv[1]) / "csrc/tests/fuzz/fuzz_seed"
    fixture = subprocess.run([tool], check=True, capture_output=True, text=True).stdout
    all_seeds = ((MANIFESTS, manifest_seeds(fixture)), (BLOBS, blob_seeds()), (GGUFS, gguf_seeds()))
    for folder, seeds in all_seeds:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds:
            (folder / name).write_bytes(data)
    (MANIFESTS.parent / "manifest.dict").write_text(dictionary())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
