# SPDX-License-Identifier: Apache-2.0
"""The file of `--record`: what cannot take the evidence is refused before anything is measured."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import calrt
from calrt.cache_files import folder_lock
from calrt.cli.output import UsageError
from calrt.evidence import Evidence, evidence_dir

__all__ = ["Recording"]


class Recording:
    """A file that evidence is added to, or none (`path` None), which takes all and keeps nothing.

    `UsageError` for a file that is damaged or cannot be written, and for a folder that is missing; calrt's
    own folder of evidence is made.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.error: Exception | None = None
        """Why it could not be written, the first time: what was found is not lost with its record."""
        if path is None or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
            return  # a device or pipe is just written to
        folder = Path(path).absolute().parent
        try:
            if os.path.isdir(path):
                raise UsageError(f"--record {path}: it is a folder; the name of a file is due")
            with suppress(OSError):  # a user without a home has none of calrt's own
                if folder == evidence_dir().absolute():
                    folder.mkdir(parents=True, exist_ok=True)
            if not folder.is_dir():
                raise UsageError(f"--record {path}: there is no folder {folder}; make it first")
            if os.path.isfile(path):
                Evidence.read(path)
                if not os.access(path, os.W_OK):
                    raise UsageError(f"--record {path}: it may not be written")
            with tempfile.TemporaryFile(dir=folder):  # as permissions alone do not tell
                pass
        except OSError as error:
            raise UsageError(f"--record {path}: no file can be written there: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"--record {error}; name another file") from None

    def check(self, evidence: Evidence) -> None:
        """`UsageError` if the file holds evidence about something else, or of another calrt."""
        if self._path is None:
            return
        try:
            evidence.merged_into(self._path)
        except (OSError, ValueError) as error:
            raise UsageError(f"--record {error}") from None

    def add(self, record: Callable[[], Evidence]) -> None:
        """Merges what `record` makes into the file; where that fails, `error` says why."""
        if self._path is None:
            return
        try:
            found = record()
            if os.path.exists(self._path) and not os.path.isfile(self._path):
                found.write(self._path)
                return
            with folder_lock(Path(self._path).absolute().parent):  # others may record into it now
                found.merged_into(self._path).write(self._path)
        except OSError as error:
            text = f"--record {self._path}: {error.strerror or error}"
            self.error = self.error or OSError(text)
        except (calrt.CalrtError, ValueError) as error:
            self.error = self.error or error
