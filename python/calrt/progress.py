# SPDX-License-Identifier: Apache-2.0
"""How long-running work tells its caller where it is."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Called with what is being done, and done of total (bytes, unless it says otherwise).

    The last call of a phase has done == total. Called often, from the thread that does the work: keep it
    short. An exception it raises ends the work.
    """

    def __call__(self, what: str, done: int, total: int, /) -> object: ...


def silent(what: str, done: int, total: int, /) -> None:
    """Reports nothing."""


class ConsoleProgress:
    """A bar on a terminal (when tqdm is installed), else one line at the start and one at the end of a phase.

    Use it in `with`, so that an interrupted bar is closed. `stream`: stderr if None. `unit`: of what is
    counted, bytes if "B".
    """

    def __init__(self, stream: TextIO | None = None, unit: str = "B") -> None:
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._what: str | None = None
        self._ended: str | None = None
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
        if done >= total and what == self._ended:  # some drivers say twice that they are done
            return
        if what != self._what:
            self.close()
            self._what = what
            if self._bar_type is not None:
                self._bar = self._bar_type(
                    total=total,
                    desc=what,
                    unit=self._unit if self._unit == "B" else f" {self._unit}",
                    unit_scale=self._unit == "B",
                    unit_divisor=1024,
                    file=self._stream,
                    leave=False,
                )
            else:
                size = f"{total / 2**20:.0f} MiB" if self._unit == "B" else f"{total} {self._unit}"
                self._say(f"{what} ({size}) ...")
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        if done >= total:
            finished = self._bar is None
            self.close()
            self._ended = what
            if finished:
                self._say(f"{what}: done")

    def close(self) -> None:
        """Ends the current phase, finished or not."""
        if self._bar is not None:
            self._bar.close()
        self._bar = self._what = self._ended = None

    def _say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
