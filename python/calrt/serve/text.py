# SPDX-License-Identifier: Apache-2.0
"""One request's text, token by token: bytes to UTF-8, stop strings, and what must be held back. Pure.

Two things may not leave yet when a token arrives: the first bytes of a character whose rest is still to
come (the detokenizer keeps those), and text that may turn out to be the beginning of a stop string (the
`StopFinder` keeps that).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from calrt.detokenizer import StopFinder


class Detokenizer(Protocol):
    """Token ids in, whole characters out (calrt.detokenizer.Detokenizer)."""

    def feed(self, token: int, /) -> str:
        """Text that is complete with this token."""

    def flush(self) -> str:
        """What is left, an incomplete character as one replacement mark."""


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
