# SPDX-License-Identifier: Apache-2.0
"""An accepted request: the owner's handle, the engine's record, and what its end means."""

from __future__ import annotations

from collections.abc import Callable

from .errors import Kind, Refused, kind_of
from .messages import (
    Accepted,
    Begun,
    ChunkDone,
    Close,
    End,
    Finish,
    Piece,
    Progress,
    Started,
    Timings,
    Token,
    TokenProbs,
)
from .outbox import Outbox
from .text import TextStream

_ANSWERS = (Finish.STOP, Finish.LENGTH, Finish.CONTEXT)


class Ticket:
    """A handle on one accepted request. Its events are in `outbox` under `index`."""

    def __init__(self, accepted: Accepted, outbox: Outbox, index: int, cancel: Callable[[int], None]) -> None:
        self._cancel = cancel
        self.accepted = accepted
        self.outbox = outbox
        self.index = index

    def cancel(self) -> None:
        """The owner has gone: the lane is free within one tick. Harmless after the end."""
        self._cancel(self.accepted.request)


class Live:
    """A request between acceptance and its terminal event: its text, its counts, its times."""

    def __init__(self, ticket: Ticket, text: TextStream) -> None:
        self.ticket = ticket
        self.lane = -1
        self._text = text
        self._tokens: list[int] = []  # since the last piece
        self._probs: list[TokenProbs] = []
        self._predicted = 0
        self._began: int | None = None
        self._first: int | None = None
        self._last: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; tokens that still come are not part of the answer."""
        return self._text.stopping_word is not None

    def hear(self, event: Started | ChunkDone | Token) -> Begun | Progress | Piece | None:
        """What the owner is told about an event; None for a token whose text is not certain yet."""
        if isinstance(event, Token):
            return None if self.stopped else self._token(event)
        if isinstance(event, Started):
            self._began = event.at
            return Begun(self.lane, event.at)
        elapsed = event.at - (self._began or event.at)
        return Progress(event.done, len(self.ticket.accepted.tokens), elapsed / 1e6)

    def _token(self, event: Token) -> Piece | None:
        self._count(event.at)
        text = self._text.feed(event.token)
        self._tokens.append(event.token)
        if event.probs is not None:
            self._probs.append(event.probs)
        if not text:
            return None
        return Piece(text, *self._take(), self._predicted, self._timings())

    def end(self, close: Close) -> End:
        """The terminal event."""
        accepted, finish = self.ticket.accepted, close.finish
        text = self._text.flush()
        if finish is Finish.STOP:
            self._count(close.at)  # the stop token was drawn too; it has no text
        if finish in _ANSWERS and self.stopped:
            finish = Finish.WORD
        elif finish is Finish.LENGTH and accepted.context_bound:
            finish = Finish.CONTEXT
        tokens, probs = self._take()
        return End(
            finish=finish,
            text=text,
            tokens=tokens,
            probs=probs,
            word=self._text.stopping_word or "",
            prompt_tokens=len(accepted.tokens),
            predicted=self._predicted,
            lane=self.lane,
            has_new_line=self._text.has_new_line,
            timings=self._timings(),
            status=close.status,
            native_code=close.native_code,
            error=close.text,
        )

    def _count(self, at: int | None) -> None:
        self._predicted += 1
        self._last = at
        if self._first is None:
            self._first = at

    def _take(self) -> tuple[tuple[int, ...], tuple[TokenProbs, ...]]:
        taken = tuple(self._tokens), tuple(self._probs)
        self._tokens.clear()
        self._probs.clear()
        return taken

    def _timings(self) -> Timings:
        began, first, last = self._began, self._first, self._last
        return Timings(
            prompt_n=len(self.ticket.accepted.tokens),
            prompt_ms=0.0 if began is None or first is None else (first - began) / 1e6,
            predicted_n=self._predicted,
            predicted_ms=0.0 if first is None or last is None else (last - first) / 1e6,
        )


def failure_of(end: End) -> Refused | None:
    """The refusal that an End stands for, None if it is an answer."""
    if end.finish is Finish.FAILED:
        return Refused(kind_of(end.status), end.error or "The device failed", status=end.status)
    if end.finish is Finish.DEADLINE:
        return Refused(
            Kind.DEADLINE, f"The request's deadline passed after {end.predicted} tokens; raise --timeout"
        )
    if end.finish is Finish.SHUTDOWN:
        return Refused(Kind.UNAVAILABLE, "The server stops, or opens its device anew; send the request again")
    if end.finish is Finish.SLOW:
        return Refused(Kind.SERVER, "The stream was not read in time and was cancelled")
    if end.finish is Finish.CANCELLED:
        return Refused(Kind.SERVER, "The request was cancelled")
    return None
