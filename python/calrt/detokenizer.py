# SPDX-License-Identifier: Apache-2.0
"""Tokens to text, one at a time, without ever cutting a character; and where a stop string ends the text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Detokenizer", "StopFinder"]


class Detokenizer:
    """Turns a stream of token ids into text pieces.

    `table[id]` is the bytes of a token (`Tokenizer.byte_table`); the table is kept, not copied. The pieces
    joined are the decoded whole, whatever the tokens' borders: bytes of an unfinished character are held
    back until the character is complete. Bytes that are not UTF-8 become U+FFFD. Not thread-safe: one per
    stream.
    """

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode

    def feed(self, token: int) -> str:
        """The text that `token` completes, perhaps "". Raises `ValueError` for an id outside the table."""
        if token >= 0:
            try:
                return self._decode(self._table[token])
            except IndexError:
                pass
        raise ValueError(f"token {token} is outside the vocabulary of {len(self._table):,} tokens")

    @property
    def pending(self) -> bytes:
        """The bytes held back: the start of a character, at most three bytes."""
        return self._decoder.getstate()[0]

    def flush(self) -> str:
        """Ends the stream: "", or one U+FFFD when it broke off inside a character. Ready for reuse."""
        rest = self._decode(b"", True)
        self._decoder.reset()
        return rest


class StopFinder:
    """Finds the first complete stop string in a stream of text, and holds back what may become one.

    The stop string that is complete first counts; of two that end at the same place, the longer one. So the
    result depends on the text alone and not on how it was cut into tokens. Not thread-safe: one per text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that may be shown now. After a hit (`found`) nothing more comes out."""
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
