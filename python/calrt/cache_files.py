# SPDX-License-Identifier: Apache-2.0
"""Where the cache is, and how its files are written, locked and recognised."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calrt.package_build import file_sha256
from calrt.progress import Progress

_LOCK_POLL = 0.1  # seconds
_MAX_DIGESTS = 256
_SETTLED_NS = 2_000_000_000  # a file changed less than 2 s ago may change again within one mtime tick


def cache_dir() -> Path:
    """CALRT_CACHE, else XDG_CACHE_HOME/calrt, else ~/.cache/calrt. Not created here.

    `OSError` where none of them is known: a user of a container need not have a home.
    """
    own = os.environ.get("CALRT_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "calrt"
    except RuntimeError:
        raise OSError("this user has no home folder: set CALRT_CACHE to a folder") from None


def identity(path: Path) -> tuple[int, int, int]:
    """Size, modification time and inode: what changes when a file's content does."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


def file_digest(source: Path, progress: Progress) -> str:
    """SHA-256 of the file, from the index when path, size, time and inode are those of an earlier reading."""
    index = cache_dir() / "digests.json"
    real = os.path.realpath(source)
    now = list(identity(source))
    known = _read_index(index)
    entry = known.get(real)
    if isinstance(entry, dict) and entry.get("identity") == now and isinstance(entry.get("sha256"), str):
        return str(entry["sha256"])
    digest = file_sha256(source, progress, f"reading {source.name}")
    settled = time.time_ns() - now[1] > _SETTLED_NS
    if settled and list(identity(source)) == now:
        known = _read_index(index)
        known.pop(real, None)
        known[real] = {"identity": now, "sha256": digest}
        oldest_first = list(known.items())[-_MAX_DIGESTS:]
        # A read-only cache only costs time here; packing will say what is wrong.
        with contextlib.suppress(OSError):
            write_atomically(index, json.dumps(dict(oldest_first), indent=1).encode())
    return digest


def _read_index(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file at once: a reader sees the old or the new bytes, never a part.

    Who may read and write it stays as it was; of a new one the user's umask says.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by tempfile, whose files are for their maker alone.
    name = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            with contextlib.suppress(OSError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def folder_lock(folder: Path, timeout: float = 10.0) -> Iterator[None]:
    """Holds a folder among all processes that take this lock, to read a file in it and replace it.

    Leaves no file behind. On a file system without locks it holds nothing. `TimeoutError` after `timeout`
    seconds.
    """
    import fcntl

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"another process has been writing in {folder} for {timeout:g} s: try again"
                    ) from None
                time.sleep(_LOCK_POLL)
            except OSError:
                break
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def key_lock(key: str, timeout: float) -> Iterator[None]:
    """Holds the lock of one key among all processes of this user. Freed by the system if a holder dies."""
    import fcntl  # POSIX only, like the rest of calrt

    folder = cache_dir() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    with open(folder / key, "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"another process has been packing this model for {timeout:.0f} s: "
                        f"end it, or pass a longer timeout"
                    ) from None
                time.sleep(_LOCK_POLL)
        yield
