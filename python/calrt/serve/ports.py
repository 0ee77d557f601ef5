# SPDX-License-Identifier: Apache-2.0
"""What the engine needs from below, as protocols: the native thing and a test's stand-in fit alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Lane(Protocol):
    """A leased lane (calrt._core.Lane)."""

    def release(self) -> None:
        """Give it back."""


class LaneStore(Protocol):
    """The lanes of a loaded model (calrt._core.Kv)."""

    @property
    def lanes(self) -> int:
        """Number of lanes."""

    @property
    def cells(self) -> int:
        """Token positions of each lane."""

    def try_reserve(self, tokens: int, prefer: int | None = None, only: bool = False) -> Any:
        """Lane `prefer`, or an error at once."""


class Runner(Protocol):
    """The native step runner (calrt._core.StepRunner)."""

    def start(
        self,
        request: int,
        lane: Any,
        tokens: Sequence[int],
        *,
        stop_tokens: Sequence[int] = (),
        max_tokens: int,
        deadline_ns: int | None = None,
        sampling: Mapping[str, Any],
    ) -> None:
        """Take a request over together with its lane."""

    def cancel(self, request: int) -> None:
        """Let go of a request at the next tick."""

    def fileno(self) -> int:
        """Readable when events are pending."""

    def drain(self) -> list[tuple[int, int, int, int, Any]]:
        """All pending events."""

    def statistics(self) -> Mapping[str, int]:
        """Counters since it was made."""

    def close(self, timeout: float = ...) -> None:
        """Cancel all and join."""


class Vocabulary(Protocol):
    """What the engine needs of a tokenizer (calrt.tokenizer.Tokenizer)."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def eog(self) -> frozenset[int]:
        """Ids that end a generation."""

    @property
    def byte_table(self) -> Sequence[bytes]:
        """The bytes of each token."""
