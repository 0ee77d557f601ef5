# SPDX-License-Identifier: Apache-2.0
"""llama-server's native dialect: /completion, /tokenize, /detokenize, /props. Pure.

Requests come in as decoded JSON, answers go out as objects to be encoded; the shapes are those of
llama-server, and what it does not have stands under the one key `calrt`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from .answers import Meta, Result, probabilities, timings
from .errors import bad_field
from .fields import DEFAULT_SAMPLERS, FIELDS, Field, Options, check, kind_name, read
from .messages import Begun, End, Finish, Piece, Progress
from .prompts import Prompt, read_prompts

MAX_TEXT_TOKENS = 262144
"""Token ids that /detokenize takes, and pieces that /tokenize gives."""

STOP_TYPES = {
    Finish.STOP: "eos",
    Finish.WORD: "word",
    Finish.LENGTH: "limit",
    Finish.CONTEXT: "limit",
}


class CompletionRequest(Struct, frozen=True):
    """A completion request after reading."""

    prompts: tuple[Prompt, ...]
    options: Options
    many: bool
    """Whether the answer is a list: the prompt was a list of prompts."""


def read_completion(body: Mapping[str, Any], defaults: Options, cells: int) -> CompletionRequest:
    """Read the body of /completion. Refused with the field's name when one is wrong.

    `cells` is a slot's size: a prompt of as many token ids cannot run.
    """
    prompts = read_prompts(body, cells)
    options = read(_with_n_probs(body), defaults)
    return CompletionRequest(prompts, options, len(prompts) > 1)


def _with_n_probs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """`logprobs`, a number here, is another name of n_probs."""
    logprobs = body.get("logprobs")
    if logprobs is None or body.get("n_probs") is not None:
        return body
    return {**body, "n_probs": check("logprobs", logprobs, FIELDS["n_probs"])}


class NativeDialect:
    """Answers of /completion: one event for each piece, the final object last, no [DONE]."""

    tail = b""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta

    def begin(self, index: int, begun: Begun, prompt_tokens: int) -> list[dict[str, Any]]:
        """Events when the work on a prompt starts."""
        if not self._meta.options.return_progress:
            return []
        return [self._progress(index, Progress(0, prompt_tokens, 0.0))]

    def progress(self, index: int, progress: Progress) -> list[dict[str, Any]]:
        """Events for a step of the prefill."""
        return [self._progress(index, progress)] if self._meta.options.return_progress else []

    def piece(self, index: int, piece: Piece, prompt_tokens: int) -> list[dict[str, Any]]:
        """Events for a piece of text."""
        event = _partial(index, piece.text, list(piece.tokens), piece.predicted, prompt_tokens)
        if self._meta.options.timings_per_token:
            event["timings"] = timings(piece.timings)
        if piece.probs:
            event["completion_probabilities"] = probabilities(
                piece.tokens, piece.probs, self._meta.token_bytes
            )
        return [event]

    def close(self, index: int, end: End) -> list[dict[str, Any]]:
        """The last events of one prompt: the rest of its text, then the final object without it."""
        events = []
        if end.text:
            rest = Piece(end.text, end.tokens, end.probs, end.predicted, end.timings)
            events = self.piece(index, rest, end.prompt_tokens)
        return [*events, self.final(Result(index, "", (), (), end))]

    def finish(self, ends: list[End]) -> list[dict[str, Any]]:
        """Events after the last prompt: none."""
        return []

    def final(self, result: Result) -> dict[str, Any]:
        """The object that ends an answer."""
        end, options = result.end, self._meta.options
        final: dict[str, Any] = {
            "index": result.index,
            "content": result.text,
            "tokens": list(result.tokens) if options.return_tokens else [],
            "id_slot": end.lane,
            "stop": True,
            "model": self._meta.model,
            "tokens_predicted": end.predicted,
            "tokens_evaluated": end.prompt_tokens,
            "generation_settings": generation_settings(options),
            "prompt": self._meta.prompts[result.index],
            "has_new_line": end.has_new_line,
            "truncated": end.finish is Finish.CONTEXT,
            "stop_type": STOP_TYPES.get(end.finish, "none"),
            "stopping_word": end.word,
            "tokens_cached": end.prompt_tokens + max(0, end.predicted - 1),
            "timings": timings(end.timings),
        }
        if result.probs:
            final["completion_probabilities"] = probabilities(
                result.tokens, result.probs, self._meta.token_bytes
            )
        if options.response_fields:
            return _selected(final, options.response_fields)
        return final

    def whole(self, results: list[Result], many: bool) -> Any:
        """The answer of a request that is not streamed."""
        finals = [self.final(result) for result in results]
        return finals if many else finals[0]

    def _progress(self, index: int, progress: Progress) -> dict[str, Any]:
        event = _partial(index, "", [0], 0, progress.total)
        event["prompt_progress"] = progress_object(progress)
        return event


def progress_object(progress: Progress) -> dict[str, Any]:
    """How far the prompt is."""
    return {
        "total": progress.total,
        "cache": 0,
        "processed": progress.done,
        "time_ms": int(progress.elapsed_ms),
    }


def generation_settings(options: Options) -> dict[str, Any]:
    """All settings of a request in llama-server's order; numbers as 32-bit floats, as it prints them."""
    return {
        "seed": options.seed,
        "temperature": _f32(options.temperature),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": options.top_k,
        "top_p": _f32(options.top_p),
        "min_p": _f32(options.min_p),
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": _f32(0.1),
        "typical_p": 1.0,
        "repeat_last_n": options.repeat_last_n,
        "repeat_penalty": _f32(options.repeat_penalty),
        "presence_penalty": _f32(options.presence_penalty),
        "frequency_penalty": _f32(options.frequency_penalty),
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": _f32(0.1),
        "adaptive_target": -1.0,
        "adaptive_decay": _f32(0.9),
        "stop": list(options.stop),
        "max_tokens": options.n_predict,
        "n_predict": options.n_predict,
        "n_keep": options.n_keep,
        "n_discard": options.n_discard,
        "ignore_eos": options.ignore_eos,
        "stream": options.stream,
        "logit_bias": [
            {"bias": None if value == float("-inf") else value, "token": token}
            for token, value in options.logit_bias
        ],
        "n_probs": options.n_probs,
        "min_keep": options.min_keep,
        "grammar": "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": list(DEFAULT_SAMPLERS),
        "speculative.types": "none",
        "timings_per_token": options.timings_per_token,
        "post_sampling_probs": False,
        "backend_sampling": False,
        "lora": [],
    }


_NOT_IN_PROPS = (
    "dry_sequence_breakers",
    "stop",
    "logit_bias",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
)


def default_settings(options: Options) -> dict[str, Any]:
    """The settings that /props shows."""
    return {key: value for key, value in generation_settings(options).items() if key not in _NOT_IN_PROPS}


class TokenizeRequest(Struct, frozen=True):
    """The body of /tokenize."""

    parts: Prompt
    add_special: bool
    parse_special: bool
    with_pieces: bool


def read_tokenize(body: Mapping[str, Any]) -> TokenizeRequest:
    """Read the body of /tokenize; without content there are no tokens."""
    content = body.get("content")
    parts = read_prompts({"prompt": content})[0] if content not in (None, []) else ()
    flags = []
    for name, default in (("add_special", False), ("parse_special", True), ("with_pieces", False)):
        value = body.get(name)
        flags.append(default if value is None else check(name, value, Field(bool)))
    return TokenizeRequest(parts, *flags)


def read_detokenize(body: Mapping[str, Any], vocab_size: int) -> list[int]:
    """Read the body of /detokenize."""
    tokens = body.get("tokens")
    if tokens is None:
        return []
    if not isinstance(tokens, list):
        raise bad_field("tokens", f"must be a list of token ids, not {kind_name(tokens)}")
    if len(tokens) > MAX_TEXT_TOKENS:
        raise bad_field("tokens", f"has {len(tokens)} token ids, at most {MAX_TEXT_TOKENS} are allowed")
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise bad_field("tokens", f"must hold token ids, not {kind_name(token)}")
        if not 0 <= token < vocab_size:
            raise bad_field("tokens", f"token id {token} is not in the vocabulary (0 to {vocab_size - 1})")
    return tokens


def piece_object(token: int, raw: bytes) -> dict[str, Any]:
    """A token with its piece: a string, or a list of bytes where it is no whole text."""
    try:
        return {"id": token, "piece": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(raw)}


def _partial(index: int, text: str, tokens: list[int], predicted: int, prompt_tokens: int) -> dict[str, Any]:
    return {
        "index": index,
        "content": text,
        "tokens": tokens,
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": predicted,
        "tokens_evaluated": prompt_tokens,
    }


def _selected(final: Mapping[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    """The fields named by `response_fields`; "a/b" is field b of a, returned under the name "a/b"."""
    chosen = {}
    for path in wanted:
        value: Any = final
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            chosen[path] = value
    return chosen


def _f32(value: float) -> float:
    try:
        widened: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return value
    return widened
