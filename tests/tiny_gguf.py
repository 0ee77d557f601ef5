# SPDX-License-Identifier: Apache-2.0
"""Makes small GGUF files for tests: a writer, and random llama models with a real vocabulary.

path = make_llama(tmp_path / "tiny.gguf", tensor_type="Q8_0", tokenizer="bpe", seed=7)
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

TYPE_NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}
_VALUE_TYPES = {
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_CORPUS = (
    "Once upon a time there was a little girl named Lily. She loved to play outside in the park with her "
    "friends. One day, she saw a big red ball on the other side of the pond, and she wanted to play with it. "
    "The ball was too high for the girl, so she went home and asked her mother for the long stick. Then they "
    "walked back to the park together and got the ball, and they were very happy about that all day long. "
    "Her friends thanked them and said that the best things come to those who share what they have."
)


# ---- writing --------------------------------------------------------------------------------------


def string_bytes(text: str | bytes) -> bytes:
    data = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    """Type number and value. Integers become u32 (or u64, i32), floats f32; numpy keeps its type."""
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        if value < 0:
            return struct.pack("<Ii", 5, value)
        return struct.pack("<II", 4, value) if value < 1 << 32 else struct.pack("<IQ", 10, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", 8) + string_bytes(value)
    if isinstance(value, np.ndarray):
        number = _VALUE_TYPES[value.dtype.str[1:]]
        return struct.pack("<IIQ", 9, number, len(value)) + value.tobytes()
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(string_bytes(item) for item in value)


def metadata_bytes(metadata: Mapping[str, Any]) -> bytes:
    return b"".join(string_bytes(key) + value_bytes(value) for key, value in metadata.items())


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Iterable[tuple[str, str, F32]] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole GGUF file. A tensor is (name, type, float32 array with its slowest dimension first)."""
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    rows, data = b"", b""
    count = 0
    for name, kind, values in tensors:
        data += bytes(-len(data) % alignment)
        dims = values.shape[::-1]
        rows += string_bytes(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        rows += struct.pack("<IQ", TYPE_NUMBERS[kind], len(data))
        data += encode(kind, values)
        count += 1
    head = b"GGUF" + struct.pack("<IQQ", version, count, len(metadata)) + metadata_bytes(metadata) + rows
    return head + bytes(-len(head) % alignment) + data


# ---- quantising -----------------------------------------------------------------------------------


def encode(kind: str, values: F32) -> bytes:
    """float32 values as the bytes of a GGUF tensor type."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if kind == "F32":
        return flat.tobytes()
    if kind == "F16":
        return flat.astype("<f2").tobytes()
    if kind == "BF16":
        bits = flat.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    block = flat.reshape(-1, 32)
    if kind == "Q8_0":
        scale, inverse = _scale(np.abs(block).max(axis=1, keepdims=True) / 127)
        return _join(scale, np.rint(block * inverse).clip(-127, 127).astype(np.int8).view(np.uint8))
    if kind == "Q4_0":
        peak = np.take_along_axis(block, np.abs(block).argmax(axis=1)[:, None], axis=1)
        scale, inverse = _scale(peak / -8)
        return _join(scale, _pack4(np.rint(block * inverse + 8)))
    if kind == "Q4_1":
        low = block.min(axis=1, keepdims=True)
        scale, inverse = _scale((block.max(axis=1, keepdims=True) - low) / 15)
        return _join(scale, low.astype("<f2").view(np.uint8), _pack4(np.rint((block - low) * inverse)))
    raise ValueError(f"tiny_gguf cannot write {kind}")


def _scale(value: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], F32]:
    half = value.astype("<f2")
    wide = half.astype(np.float32)
    return half.view(np.uint8), np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)


def _pack4(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    four = values.clip(0, 15).astype(np.uint8)
    return four[:, :16] | (four[:, 16:] << 4)


def _join(*parts: npt.NDArray[np.uint8]) -> bytes:
    return np.concatenate(parts, axis=1).tobytes()


# ---- vocabularies ---------------------------------------------------------------------------------


def _learn_merges(words: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pair merges of the words (fewer when nothing is left to merge)."""
    split = {word: list(word) for word in words}
    weight = Counter(words)
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += weight[word]
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        for word, parts in split.items():
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1
            split[word] = parts
    return merges


def spm_metadata(vocab: int = 384) -> dict[str, Any]:
    """A SentencePiece-like vocabulary with byte fallback: 3 special tokens, 256 bytes, then pieces."""
    words = ["▁" + word for word in _CORPUS.split()]
    letters = sorted(set("".join(words)))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256
    scores = [0.0] * len(tokens)
    room = vocab - len(tokens) - len(letters)
    if room < 0:
        raise ValueError(f"an SPM vocabulary needs at least {len(tokens) + len(letters)} tokens, not {vocab}")
    pieces: list[str] = list(dict.fromkeys("".join(merge) for merge in _learn_merges(words, room)))
    for rank, piece in enumerate(pieces + letters):
        tokens.append(piece)
        kinds.append(1)
        scores.append(-float(rank))
    while len(tokens) < vocab:
        kinds.append(5)
        scores.append(-1e4)
        tokens.append(f"<unused{len(tokens)}>")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def bpe_metadata(vocab: int = 384, pre: str = "gpt-2") -> dict[str, Any]:
    """A byte-level BPE vocabulary: 3 control tokens (end, start, stop of a turn), 256 bytes, then merges."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    letters = [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    if vocab < len(tokens):
        raise ValueError(f"a BPE vocabulary needs at least {len(tokens)} tokens, not {vocab}")
    kinds = [3] * 3 + [1] * 256
    words = ["Ġ" + word for word in _CORPUS.split()]
    merges: list[str] = []
    for left, right in _learn_merges(words, vocab - len(tokens)):
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
            kinds.append(1)
    while len(tokens) < vocab:
        kinds.append(5)
        tokens.append(f"<|unused{len(tokens)}|>")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


# ---- models ---------------------------------------------------------------------------------------


def llama_metadata(
    *,
    layers: int = 2,
    embed: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    context: int = 256,
    rope_base: float = 10000.0,
) -> dict[str, Any]:
    """The keys that describe a llama model's geometry."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": embed,
        "llama.feed_forward_length": ffn,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.dimension_count": embed // heads,
        "llama.rope.freq_base": float(rope_base),
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }


def llama_tensors(
    *,
    layers: int = 2,
    embed: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    vocab: int = 384,
    tensor_type: str = "F32",
    tied: bool = False,
    seed: int = 0,
) -> list[tuple[str, str, F32]]:
    """Random weights whose logits are spread enough that greedy decoding is interesting. Norms stay F32."""
    rng = np.random.default_rng(seed)
    keys = embed // heads * kv_heads

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> tuple[str, str, F32]:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(gain / np.sqrt(columns))
        return name, tensor_type, values

    def norm(name: str) -> tuple[str, str, F32]:
        return name, "F32", (1 + 0.1 * rng.standard_normal(embed)).astype(np.float32)

    tensors = [matrix("token_embd.weight", vocab, embed, 4.0)]
    for layer in range(layers):
        head = f"blk.{layer}."
        tensors += [
            norm(head + "attn_norm.weight"),
            matrix(head + "attn_q.weight", embed, embed, 2.0),
            matrix(head + "attn_k.weight", keys, embed, 2.0),
            matrix(head + "attn_v.weight", keys, embed),
            matrix(head + "attn_output.weight", embed, embed),
            norm(head + "ffn_norm.weight"),
            matrix(head + "ffn_gate.weight", ffn, embed),
            matrix(head + "ffn_up.weight", ffn, embed),
            matrix(head + "ffn_down.weight", embed, ffn),
        ]
    tensors.append(norm("output_norm.weight"))
    if not tied:
        tensors.append(matrix("output.weight", vocab, embed, 4.0))
    return tensors


def make_llama(
    path: str | os.PathLike[str],
    *,
    layers: int = 2,
    embed: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    vocab: int = 384,
    context: int = 256,
    tensor_type: str = "F32",
    tied: bool = False,
    tokenizer: str = "spm",
    pre: str = "gpt-2",
    chat_template: str | None = None,
    rope_base: float = 10000.0,
    seed: int = 0,
) -> Path:
    """Writes a random llama model and returns its path; equal arguments give equal bytes.

    `tensor_type`: F32, F16, BF16, Q8_0, Q4_0 or Q4_1 (block types need embed and ffn divisible by 32).
    `tokenizer`: "spm" or "bpe", the latter with pre-tokenizer `pre`.
    """
    if tokenizer not in ("spm", "bpe"):
        raise ValueError(f"tokenizer={tokenizer!r}; wanted spm or bpe")
    metadata = llama_metadata(
        layers=layers,
        embed=embed,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        context=context,
        rope_base=rope_base,
    )
    metadata |= spm_metadata(vocab) if tokenizer == "spm" else bpe_metadata(vocab, pre)
    if chat_template is not None:
        metadata["tokenizer.chat_template"] = chat_template
    tensors = llama_tensors(
        layers=layers,
        embed=embed,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        tensor_type=tensor_type,
        tied=tied,
        seed=seed,
    )
    out = Path(path)
    out.write_bytes(gguf_bytes(metadata, tensors))
    return out
