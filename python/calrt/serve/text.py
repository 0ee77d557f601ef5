# SPDX-License-Identifier: Apache-2.0
"""One request's text, token by token: bytes to UTF-8, stop strings, and what must be held back. Pure.

Two things may not leave yet when a token arrives: the first bytes of a character whose rest is still to
come (the detokenizer keeps those), and text that may turn out to be the beginning of a stop string (kept
here). Generation stops at the stop string that is complete first; of two that end at the same place the
longer one counts. So the result depends on the text alone and never on how it was cut into tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Token ids in, whole characters out (calrt.detokenizer.Detokenizer)."""

    def feed(self, token: int, /) -> str:
        """Text that is complete with this token."""

    def flush(self) -> str:
        """What is left, an incomplete character as one replacement mark."""


class StopFinder:
    """Finds the first complete stop string in a stream of text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that may be sent now. After a hit (`found`) nothing more comes out."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        held = self._held + text
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := held.find(stop)) >= 0]
        if hits:
            _, start, self.found = min(hits)
            self._held = ""
            return held[:start]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text held back, when no more will follow."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class TextStream:
    """Tokens of one request in, text for its owner out."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopFinder(stops)
        self.has_new_line = False

    @property
    def stopping_word(self) -> str | None:
        """The stop string that was found, or None."""
        return self._stops.found

    def feed(self, token: int) -> str:
        """Text that can be sent now that `token` is known; may be empty."""
        return self._note(self._stops.feed(self._detokenizer.feed(token)))

    def flush(self) -> str:
        """The rest, at the end of generation. Empty after a stop string."""
        if self._stops.found is not None:
            return ""
        text = self._stops.feed(self._detokenizer.flush())
        return self._note(text + self._stops.flush())

    def _note(self, text: str) -> str:
        if "\n" in text:
            self.has_new_line = True
        return text
