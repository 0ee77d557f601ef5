# SPDX-License-Identifier: Apache-2.0
"""Opening what somebody named as a file, when it may be a pipe or a device, which never end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

__all__ = ["open_regular"]


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file at `path`, to read bytes of. Never waits for a writer.

    `OSError` if it cannot be opened, or is a pipe, a socket or a device; `IsADirectoryError` for a folder.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "a pipe or a device, a regular file is due", os.fspath(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise
