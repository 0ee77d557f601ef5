# SPDX-License-Identifier: Apache-2.0
"""Made-up vocabularies: every byte, then pseudo-words of syllables, then the control tokens.

A device that only picks token ids still writes something that reads like words, and any text can be encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calrt.gguf import MAGIC
from calrt.vocabulary import CONTROL, NORMAL, Vocabulary, byte_alphabet

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SYLLABLES = tuple(a + b for a in "bdfghjklmnprstvz" for b in "aeiou")
_SPREAD = 2_477  # coprime to the 80**n words of a length, so that a part of them has all first syllables
_STRING, _ARRAY, _UINT32, _INT32, _BOOL = 8, 9, 4, 5, 7  # value types of GGUF
FEWEST = 256 + 2 * len(_SYLLABLES) + len(CONTROLS)


def made_up_vocabulary(size: int) -> Vocabulary:
    """A vocabulary of exactly `size` tokens, at least `FEWEST`; equal sizes give equal ones.

    The ids 0 to 255 are the bytes, the last three the control tokens: the last of them begins and ends a
    text, the one before it ends a turn.
    """
    if size < FEWEST:
        raise ValueError(f"a made-up vocabulary has at least {FEWEST} tokens, not {size}")
    merges = list(_merges(size - 256 - len(CONTROLS)))
    words, end = size - len(CONTROLS), size - 1
    return Vocabulary(
        model="bpe",
        pre="gpt-2",
        tokens=[*byte_alphabet(), *(left + right for left, right in merges), *CONTROLS],
        kinds=[NORMAL] * words + [CONTROL] * len(CONTROLS),
        scores=[],
        merges=[f"{left} {right}" for left, right in merges],
        bos=end,
        eos=end,
        unk=None,
        eog=(end, end - 1),
        add_bos=True,
        add_eos=False,
        add_space_prefix=False,
        chat_template=CHAT_TEMPLATE,
    )


def vocabulary_gguf(vocabulary: Vocabulary) -> bytes:
    """A GGUF without tensors that `read_vocabulary` reads a made-up vocabulary from."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": vocabulary.pre,
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": np.array(vocabulary.kinds, "<i4"),
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": vocabulary.bos,
        "tokenizer.ggml.eos_token_id": vocabulary.eos,
        "tokenizer.ggml.add_bos_token": vocabulary.add_bos,
        "tokenizer.chat_template": vocabulary.chat_template,
    }
    pairs = b"".join(_string(key) + _value(value) for key, value in metadata.items())
    return MAGIC + struct.pack("<IQQ", 3, 0, len(metadata)) + pairs


def _merges(count: int) -> Iterator[tuple[str, str]]:
    """The first `count` merges: syllables, the same after a space, then words of two and three syllables."""
    space = byte_alphabet()[ord(" ")]
    yield from ((syllable[0], syllable[1]) for syllable in _SYLLABLES)
    yield from ((space, syllable) for syllable in _SYLLABLES)
    heads = [space + syllable for syllable in _SYLLABLES]
    left = count - 2 * len(_SYLLABLES)
    while left > 0:
        total = len(heads) * len(_SYLLABLES)
        words = []
        for number in range(min(left, total)):
            head, syllable = divmod(number * _SPREAD % total, len(_SYLLABLES))
            yield heads[head], _SYLLABLES[syllable]
            words.append(heads[head] + _SYLLABLES[syllable])
        heads, left = words, left - len(words)


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: str | bool | int | Sequence[str] | np.ndarray[Any, Any]) -> bytes:
    """Type number and value, as the metadata of a GGUF has them."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", _ARRAY, _INT32, len(value)) + value.tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
