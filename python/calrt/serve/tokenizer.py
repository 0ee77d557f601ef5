# SPDX-License-Identifier: Apache-2.0
"""Prompts to token ids: short texts at once, long ones on a few threads so that the event loop stays free."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from .errors import Kind, Refused
from .ports import Vocabulary
from .prompts import Prompt

INLINE_CHARACTERS = 4096
"""Texts up to this length are encoded on the event loop: about a millisecond at most."""


class Tokenizer(Vocabulary, Protocol):
    """What the server needs of `calrt.tokenizer.Tokenizer`."""

    bos: int | None
    eos: int | None
    add_bos: bool
    chat_template: str | None

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text."""

    def fewest(self, text: str) -> int:
        """A number of tokens that a text has at least, found without encoding it."""

    def token_text(self, token: int) -> str:
        """A token's name in the vocabulary."""

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """Text of token ids."""


class PromptEncoder:
    """Encodes prompts; at most `backlog` long ones wait for one of the `workers` threads."""

    def __init__(self, tokenizer: Tokenizer, workers: int = 2, backlog: int = 64) -> None:
        self._tokenizer = tokenizer
        self._limiter = anyio.CapacityLimiter(workers)
        self._backlog = backlog

    async def encode(self, parts: Prompt, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a prompt's parts. Only a text at the beginning gets the model's special tokens."""
        size = sum(len(part) for part in parts if isinstance(part, str))
        if size <= INLINE_CHARACTERS:
            return self._encode(parts, add_special, parse_special)
        if self._limiter.statistics().tasks_waiting >= self._backlog:
            raise Refused(Kind.OVERLOADED, f"{self._backlog} long prompts wait already. Try again later")
        return await anyio.to_thread.run_sync(
            self._encode, parts, add_special, parse_special, limiter=self._limiter, abandon_on_cancel=True
        )

    def fewest(self, parts: Prompt) -> int:
        """A number of tokens that the prompt has at least; costs next to nothing."""
        return sum(1 if isinstance(part, int) else self._tokenizer.fewest(part) for part in parts)

    async def decode(self, tokens: list[int]) -> str:
        """The text of token ids, control tokens included."""
        if len(tokens) <= INLINE_CHARACTERS:
            return self._tokenizer.decode(tokens, special=True)
        return await anyio.to_thread.run_sync(
            partial(self._tokenizer.decode, tokens, special=True), limiter=self._limiter
        )

    def _encode(self, parts: Prompt, add_special: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, int):
                tokens.append(part)
            else:
                special = add_special and index == 0
                tokens += self._tokenizer.encode(part, add_special=special, parse_special=parse_special)
        return tokens
