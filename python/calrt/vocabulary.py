# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of a GGUF: token texts, kinds and special ids, without any tokenizer library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from calrt.gguf import GgufError, GgufMetadata

_MAX_TOKEN = 1024  # characters; the longest known has 256
_MAX_WHOLE = 32768  # tokens cut out whole: they become one regular expression; the most known are 6,500
_BYTE_TEXT = re.compile("<0x[0-9A-Fa-f]{2}>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Models that name no end-of-turn id still end their turns with one of these control tokens.
_END_TEXTS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"),
        *("<|end_of_text|>", "<end_of_turn>", "<|turn_end|>", "<|END_OF_TURN_TOKEN|>", "<EOT>", "[EOT]"),
        *("<|EOT|>", "<｜end▁of▁sentence｜>"),
    )
)
# Pre-tokenizers whose models expect BOS though their files may not say so.
_BOS_BY_DEFAULT = frozenset(("llama-bpe", "llama3", "llama-v3", "falcon3"))


@dataclass(frozen=True)
class Vocabulary:
    """Token i has text `tokens[i]` and kind `kinds[i]` (the constants above).

    `model` is "spm" or "bpe"; `pre` names the pre-tokenizer of a BPE vocabulary. `scores` is empty when the
    file has none. Absent special ids are None.
    """

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float]
    merges: list[str]
    bos: int | None
    eos: int | None
    unk: int | None
    eog: tuple[int, ...]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None

    def token_bytes(self) -> list[bytes]:
        """The bytes each token adds to the text: id -> bytes. Control and unused tokens add none.

        User-defined tokens stand for their text as it is written.
        """
        if self.model == "spm":
            return _spm_bytes(self)
        return _bpe_bytes(self)


def read_vocabulary(metadata: GgufMetadata) -> Vocabulary:
    """The vocabulary in a GGUF's metadata. Raises `GgufError` naming the key that is missing or wrong."""
    name = metadata.required("tokenizer.ggml.model", "text")
    model = {"llama": "spm", "gpt2": "bpe"}.get(name)
    if model is None:
        raise GgufError(f"tokenizer.ggml.model is {name!r}; supported: llama (SPM) and gpt2 (BPE)")
    spm = model == "spm"
    tokens = metadata.required("tokenizer.ggml.tokens", "texts")
    count = len(tokens)
    if count == 0:
        raise GgufError("tokenizer.ggml.tokens is empty")
    length, longest = max((len(text), index) for index, text in enumerate(tokens))
    if length > _MAX_TOKEN:  # the splits of a token cost its length squared
        raise GgufError(f"tokenizer.ggml.tokens[{longest}] has {length:,} characters, at most {_MAX_TOKEN:,}")
    kinds = _per_token(metadata, "tokenizer.ggml.token_type", count, "iu", np.int64)
    scores = _per_token(metadata, "tokenizer.ggml.scores", count, "iuf", np.float64)
    if spm and not scores:
        raise GgufError("tokenizer.ggml.scores is missing; an SPM vocabulary needs it")
    pre = metadata.text("tokenizer.ggml.pre", "default")

    def special(key: str, default: int | None) -> int | None:
        number = metadata.uint(f"tokenizer.ggml.{key}_token_id", default)
        return number if number is not None and number < count else None  # 2**32 - 1 means "none"

    eos = special("eos", 2 if spm else None)
    kinds = kinds or [NORMAL] * count
    whole = sum(kinds.count(kind) for kind in (UNKNOWN, CONTROL, USER_DEFINED))
    if whole > _MAX_WHOLE:
        raise GgufError(
            f"tokenizer.ggml.token_type has {whole:,} control or user-defined tokens, at most {_MAX_WHOLE:,}"
        )
    ends = [i for i, text in enumerate(tokens) if text in _END_TEXTS and kinds[i] in (CONTROL, USER_DEFINED)]
    ends += [i for i in (special("eot", None), special("eom", None)) if i is not None]
    eog = ([] if eos is None else [eos]) + sorted(set(ends) - {eos})
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=scores,
        merges=metadata.texts("tokenizer.ggml.merges", []),
        bos=special("bos", 1 if spm else None),
        eos=eos,
        unk=special("unknown", 0 if spm else None),
        eog=tuple(eog),
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", spm or pre in _BOS_BY_DEFAULT),
        add_eos=metadata.flag("tokenizer.ggml.add_eos_token", False),
        add_space_prefix=metadata.flag("tokenizer.ggml.add_space_prefix", spm),
        chat_template=metadata.text("tokenizer.chat_template", None) or None,
    )


def _per_token(metadata: GgufMetadata, key: str, count: int, kinds: str, dtype: Any) -> Any:
    """The numbers a file gives for each token as a list, empty when it gives none.

    `kinds` are numpy's letters for the kinds of number that may be there.
    """
    values = metadata.numbers(key, None)
    if values is None:
        return []
    if len(values) != count:
        raise GgufError(f"{key} has {len(values):,} entries, tokenizer.ggml.tokens has {count:,}")
    if values.dtype.kind not in kinds:
        wanted = "integers" if kinds == "iu" else "numbers"
        raise GgufError(f"{key} is an array of {values.dtype}; wanted {wanted}")
    return values.astype(dtype).tolist()


@lru_cache(maxsize=1)
def byte_alphabet() -> str:
    """The character that stands for each byte in a byte-level BPE vocabulary, 256 characters.

    Printable bytes stand for themselves; the others take the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return "".join(letters)


def _bpe_bytes(vocabulary: Vocabulary) -> list[bytes]:
    alphabet = byte_alphabet()
    # Latin-1 maps code point n to byte n, so one C-level translate and encode does a whole token.
    table = {ord(letter): byte for byte, letter in enumerate(alphabet)}
    letters = frozenset(alphabet)
    out: list[bytes] = []
    for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in (CONTROL, UNUSED):
            out.append(b"")
        elif kind == USER_DEFINED or not letters.issuperset(text):
            out.append(text.encode("utf-8"))
        else:
            out.append(text.translate(table).encode("latin-1"))
    return out


def _spm_bytes(vocabulary: Vocabulary) -> list[bytes]:
    out: list[bytes] = []
    for index, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind == BYTE:
            out.append(bytes([byte_token_value(text, index)]))
        elif kind in (CONTROL, UNUSED):
            out.append(b"")
        elif kind == UNKNOWN:
            out.append(" \u2047 ".encode())  # how sentencepiece writes a piece it does not know
        else:
            out.append(text.replace("\u2581", " ").encode("utf-8"))
    return out


def byte_token_value(text: str, index: int) -> int:
    """The byte a token such as `<0x0A>` stands for. Raises `GgufError` naming the token."""
    if _BYTE_TEXT.fullmatch(text):
        return int(text[3:5], 16)
    raise GgufError(f"token {index} is a byte token, but its text is {text!r}, not <0xNN>")
