# SPDX-License-Identifier: Apache-2.0
"""Tokens to text, one at a time, without ever cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


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
