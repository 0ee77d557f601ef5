# SPDX-License-Identifier: Apache-2.0
"""Text or token ids from a model, one sequence at a time: prefill, then sample and decode."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from calrt._arguments import seconds, whole
from calrt._core import Sampler, token_ids
from calrt._enums import Status
from calrt.errors import error_for

if TYPE_CHECKING:
    from calrt.model import Model

_T = TypeVar("_T")

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
    stops = _several("stop", options.get("stop"), str, "a non-empty string or several are due")
    if "" in stops:
        raise error_for(Status.INVALID_ARGUMENT, "stop: a non-empty string or several are due")
    ids = options.get("stop_tokens")
    stop_tokens = _several("stop_tokens", ids, int, "a token id or several are due")
    temperature = options.get("temperature")
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise error_for(Status.OUT_OF_RANGE, f"temperature={temperature}: 0 (greedy) or more is due")
    sampling = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    sampling.setdefault("seed", secrets.randbits(32))
    return _Request(
        max_tokens=max_tokens,
        sampling=sampling,
        stop=stops,
        stop_tokens=model.stop_tokens if ids is None else frozenset(stop_tokens),
        timeout=options.get("timeout"),
    )


def _several(name: str, given: Any, kind: type[_T], due: str) -> tuple[_T, ...]:
    """One value or an iterable of them as a tuple; None is none."""
    if given is None:
        return ()
    values = (given,) if isinstance(given, (str, int)) else given
    if not isinstance(values, Iterable):
        raise error_for(Status.INVALID_ARGUMENT, f"{name}={given!r}: {due}")
    several = tuple(values)
    if not all(isinstance(value, kind) for value in several):
        raise error_for(Status.INVALID_ARGUMENT, f"{name}={given!r}: {due}")
    return several


class StopStrings:
    """Holds back what may become a stop string, and ends the text before one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """The text that is safe to show after `piece`; `stopped` once a stop string was complete."""
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if stop.startswith(text[len(text) - size :]):
                return size
        return 0


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
    from calrt.detokenizer import Detokenizer

    detokenizer = Detokenizer(model.tokenizer.byte_table)
    stops = StopStrings(request.stop)
    with closing(ids):  # gives the lane back at once, however this ends
        for token in ids:
            piece = stops.feed(detokenizer.feed(token))
            if piece:
                yield piece
            if stops.stopped:
                return
    piece = stops.feed(detokenizer.flush())
    rest = piece if stops.stopped else piece + stops.flush()
    if rest:
        yield rest
