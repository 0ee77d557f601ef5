# SPDX-License-Identifier: Apache-2.0
"""How long-running work tells its caller where it is."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Called with what is being done, and done of total bytes; the last call of a phase has done == total.

    Called often, from the thread that does the work: keep it short. An exception it raises ends the work.
    """

    def __call__(self, what: str, done: int, total: int, /) -> object: ...


def silent(what: str, done: int, total: int, /) -> None:
    """Reports nothing."""


class ConsoleProgress:
    """A bar on a terminal (when tqdm is installed), else one line at the start and one at the end of a phase.

    Use it as a context manager, so that an interrupted bar is closed.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._what: str | None = None
        self._bar: Any = None
        self._bar_type: Any = None
        if self._stream.isatty():
            try:
                from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]
            except ImportError:
                pass
            else:
                self._bar_type = tqdm

    def __call__(self, what: str, done: int, total: int, /) -> None:
        if what != self._what:
            self.close()
            self._what = what
            if self._bar_type is not None:
                self._bar = self._bar_type(
                    total=total,
                    desc=what,
                    unit="B",
                    unit_scale=True,
                    unit_divisor=1024,
                    file=self._stream,
                    leave=False,
                )
            else:
                self._say(f"{what} ({total / 2**20:.0f} MiB) ...")
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if done >= total:
            finished = self._bar is None
            self.close()
            if finished:
                self._say(f"{what}: done")

    def close(self) -> None:
        """Ends the current phase, finished or not."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None
        self._what = None

    def _say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
