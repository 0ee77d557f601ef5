# SPDX-License-Identifier: Apache-2.0
"""How byte-level BPE vocabularies cut text into words, by the name in `tokenizer.ggml.pre`.

Each entry is a list of regular expressions (Oniguruma syntax), applied in turn: an expression cuts each piece
that the one before left into its matches and what lies between them.
"""

from __future__ import annotations

from calrt.gguf import GgufError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_THREE_DIGITS = "[0-9][0-9][0-9]"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters that have a case, without those that came with later Unicode versions or that the model's authors
# left out: lower-case Armenian, Georgian, Cherokee supplements, late Latin letters, mathematical alphabets.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10C7\u10CD\u10D0-\u10FF\u1C80-\u1C8F\u2D00-\u2D2D\uA790-\uA7FF"
    r"\uAB30-\uAB68\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DF2A}]]"
)

_LLAMA3 = [rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"]
_QWEN2 = [rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"]
_DIGIT_WISE = [r"\p{N}", _GPT2]

PATTERNS: dict[str, list[str]] = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", _THREE_DIGITS],
    "gpt-2": [_GPT2],
    "mpt": [_GPT2],
    "olmo": [_GPT2],
    "phi-2": [_GPT2],
    "jina-es": [_GPT2],
    "jina-de": [_GPT2],
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "smollm": _DIGIT_WISE,
    "starcoder": _DIGIT_WISE,
    "refact": _DIGIT_WISE,
    "command-r": _DIGIT_WISE,
    "codeshell": _DIGIT_WISE,
    "exaone": _DIGIT_WISE,
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, _THREE_DIGITS],
    "deepseek-llm": [
        r"[\r\n]",
        rf"\s?{_CASED}+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"],
}
# Vocabularies in which a word that is a token is taken whole, before any merge.
WHOLE_WORDS = frozenset(("llama-bpe", "llama3", "llama-v3"))


def patterns(pre: str) -> list[str]:
    """The expressions of a pre-tokenizer. Raises `GgufError` naming it and the known ones."""
    found = PATTERNS.get(pre)
    if found is None:
        raise GgufError(
            f"tokenizer.ggml.pre is {pre!r}, which calrt does not know; known: {', '.join(sorted(PATTERNS))}"
        )
    return found
