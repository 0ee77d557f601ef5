# SPDX-License-Identifier: Apache-2.0
"""What drivers and their children print on stderr while something is measured: a few lines, and a count."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["few_lines"]

_SHOWN = 5
_END_S = 2.0
"""For a process that a driver left behind and that still holds the pipe."""


@contextmanager
def few_lines(*, silent: bool = False) -> Iterator[TextIO]:
    """Stderr of this process and of those it starts: the first lines come through, none if `silent`, then how
    many more there were. Gives the stderr that was, for what is to be seen whatever drivers print."""
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    count = 0

    def pump() -> None:
        nonlocal count
        with open(reading, "rb") as lines:
            for line in lines:
                count += 1
                if count <= _SHOWN and not silent:
                    os.write(real, line)

    reader = threading.Thread(target=pump, name="calrt-driver-lines", daemon=True)
    reader.start()
    try:
        with open(os.dup(real), "w", encoding="utf-8", errors="replace") as terminal:
            yield terminal
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        reader.join(_END_S)
        if count > _SHOWN and not silent:
            os.write(2, f"... and {count - _SHOWN} more lines of the driver\n".encode())
        if not reader.is_alive():
            os.close(real)
