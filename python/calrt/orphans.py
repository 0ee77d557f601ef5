# SPDX-License-Identifier: Apache-2.0
"""Processes that are started to touch a device: none is left when whoever started it is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["end_with_parent"]


def end_with_parent(tidy: Callable[[], object]) -> None:
    """Ends this process once its stdin has ended, as it does when its parent is gone, in whatever way.

    A driver that hangs would keep the device for ever. `tidy` is called first, in a thread of its own. What
    stood in stdin before has to be read by then.
    """

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):  # not sys.stdin, whose lock Python wants when it ends
                pass
        with suppress(OSError):
            tidy()
        os._exit(1)

    threading.Thread(target=watch, name="calrt-parent", daemon=True).start()
