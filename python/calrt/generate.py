# SPDX-License-Identifier: Apache-2.0
"""Text or token ids from a model, one sequence at a time: prefill, then sample and decode."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from calrt._arguments import iterable, refuse, seconds, whole
from calrt._core import Sampler, token_ids
from calrt._enums import Status
from calrt.detokenizer import Detokenizer, StopFinder
from calrt.errors import error_for

if TYPE_CHECKING:
    from calrt.model import Model

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "repeat_last_n",
    "seed",
    "logit_bias",
)
_OTHER = ("stop", "stop_tokens", "timeout")
_ALWAYS = ("max_tokens", "stream")


@dataclass
class _Request:
    """Checked options of one generation."""

    max_tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    timeout: float | None = None


def _checked(model: Model, max_tokens: int, options: dict[str, Any]) -> _Request:
    unknown = sorted(set(options) - {*_SAMPLING, *_OTHER})
    if unknown:
        known = ", ".join((*_ALWAYS, *_SAMPLING, *_OTHER))
        raise error_for(Status.INVALID_ARGUMENT, f"there is no option {unknown[0]!r}; known: {known}")
    max_tokens = whole("max_tokens", max_tokens, 1, (1 << 31) - 1)
    if options.get("timeout") is not None:
        seconds("timeout", options["timeout"])
    ids = options.get("stop_tokens")
    temperature = options.get("temperature")
    if isinstance(temperature, Real) and temperature < 0:
        raise error_for(Status.OUT_OF_RANGE, f"temperature={temperature}: 0 (greedy) or more is due")
    sampling = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    sampling.setdefault("seed", secrets.randbits(32))
    return _Request(
        max_tokens=max_tokens,
        sampling=sampling,
        stop=_stop_strings(options.get("stop")),
        stop_tokens=model.stop_tokens if ids is None else _stop_tokens(ids, model.vocab),
        timeout=options.get("timeout"),
    )


def _stop_strings(given: Any) -> tuple[str, ...]:
    """One text or several as a tuple; None is none."""
    if given is None:
        return ()
    stops = [given] if isinstance(given, str) else iterable("stop", given, "a text or a list of texts")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            refuse("stop", stop, "a text that is not empty")
    return tuple(stops)


def _stop_tokens(given: Any, vocab: int) -> frozenset[int]:
    """One token id or several, each of the vocabulary: another one would never be drawn."""
    ids = given if isinstance(given, Iterable) else [given]
    due = "a token id or a list of token ids"
    return frozenset(token_ids("stop_tokens", iterable("stop_tokens", ids, due), vocab))


def generate_ids(model: Model, prompt: list[int], max_tokens: int, options: dict[str, Any]) -> Iterator[int]:
    """Token ids that continue `prompt`, without the stop token. Options are checked before this returns."""
    request = _checked(model, max_tokens, options)
    if request.stop:
        raise error_for(Status.INVALID_ARGUMENT, "stop: strings end text; for ids give stop_tokens")
    return _run(model, prompt, request)


def generate_text(model: Model, prompt: str, max_tokens: int, options: dict[str, Any]) -> Iterator[str]:
    """Text that continues `prompt`, in pieces that are not empty. Options are checked before this returns."""
    request = _checked(model, max_tokens, options)
    ids = _run(model, model.tokenizer.encode(prompt, parse_special=True), request)
    return _pieces(model, ids, request)


def _run(model: Model, prompt: list[int], request: _Request) -> Generator[int, None, None]:
    """Checks the prompt now; the iterator runs later."""
    if not prompt:
        raise error_for(Status.SHAPE_MISMATCH, "prompt: no tokens; give at least one")
    if len(prompt) > model.cells:
        raise error_for(
            Status.OUT_OF_RANGE, f"prompt: {len(prompt)} tokens do not fit a lane of {model.cells} cells"
        )
    sampler = Sampler(model.vocab, _tokens(model), request.sampling)
    prompt = token_ids("prompt", prompt, model.vocab)
    for token in prompt:
        sampler.accept(token)
    return _steps(model, prompt, request, sampler)


def _steps(
    model: Model, prompt: list[int], request: _Request, sampler: Sampler
) -> Generator[int, None, None]:
    room = min(model.cells, len(prompt) + request.max_tokens)
    with model.sequence(room, timeout=request.timeout) as sequence:
        logits = sequence.prefill(prompt)
        for step in range(request.max_tokens):
            token = sampler.sample(logits)
            if token in request.stop_tokens:
                return
            sampler.accept(token)
            yield token
            if step + 1 == request.max_tokens or sequence.length >= room:
                return
            logits = sequence.decode(token)


def _tokens(model: Model) -> int:
    """Columns of the logits that have a token."""
    try:
        return min(model.vocab, model.tokenizer.vocab_size)
    except (ImportError, ValueError):
        return model.vocab


def _pieces(model: Model, ids: Generator[int, None, None], request: _Request) -> Iterator[str]:
    detokenizer = Detokenizer(model.tokenizer.byte_table)
    stops = StopFinder(request.stop)
    with closing(ids):  # gives the lane back at once, however this ends
        for token in ids:
            piece = stops.feed(detokenizer.feed(token))
            if piece:
                yield piece
            if stops.found is not None:
                return
    rest = stops.feed(detokenizer.flush()) + stops.flush()
    if rest:
        yield rest
