# SPDX-License-Identifier: Apache-2.0
"""What all dialects say about an answer: the request's identity, timings, usage, log probabilities. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from .fields import Options
from .messages import End, Finish, Timings, TokenProbs

_LOWEST = -struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


class Meta(Struct, frozen=True, kw_only=True):
    """What is the same in every part of one answer."""

    id: str
    created: int
    model: str
    fingerprint: str
    options: Options
    prompts: tuple[str, ...]
    """The prompts as text, special tokens included."""
    include_usage: bool = False
    token_bytes: Callable[[int], bytes]


class Result(Struct, frozen=True):
    """One finished answer, collected."""

    index: int
    text: str
    tokens: tuple[int, ...]
    probs: tuple[TokenProbs, ...]
    end: End


def finish_reason(end: End) -> str:
    """OpenAI's word for the reason."""
    return "length" if end.finish in (Finish.LENGTH, Finish.CONTEXT) else "stop"


def timings(values: Timings) -> dict[str, Any]:
    """llama-server's timings object. Rates of one token are 0; never infinite."""
    steps = max(0, values.predicted_n - 1)
    return {
        "cache_n": values.cache_n,
        "prompt_n": values.prompt_n,
        "prompt_ms": values.prompt_ms,
        "prompt_per_token_ms": _ratio(values.prompt_ms, values.prompt_n),
        "prompt_per_second": 1e3 * _ratio(values.prompt_n, values.prompt_ms),
        "predicted_n": values.predicted_n,
        "predicted_ms": values.predicted_ms,
        "predicted_per_token_ms": _ratio(values.predicted_ms, steps),
        "predicted_per_second": 1e3 * _ratio(steps, values.predicted_ms),
    }


def usage(prompt_tokens: int, predicted: int, cached: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "completion_tokens": predicted,
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def probabilities(
    tokens: Sequence[int], probs: Sequence[TokenProbs], token_bytes: Callable[[int], bytes]
) -> list[dict[str, Any]]:
    """Log probabilities of the drawn tokens and of the best candidates, as llama-server lists them."""
    rows = []
    for token, (logprob, top) in zip(tokens, probs, strict=False):
        row = _candidate(token, logprob, token_bytes)
        row["top_logprobs"] = [_candidate(other, value, token_bytes) for other, value in top]
        rows.append(row)
    return rows


def _candidate(token: int, logprob: float, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    raw = token_bytes(token)
    return {
        "id": token,
        "token": raw.decode("utf-8", "replace"),
        "bytes": list(raw),
        "logprob": max(logprob, _LOWEST),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
