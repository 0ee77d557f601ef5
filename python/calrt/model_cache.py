# SPDX-License-Identifier: Apache-2.0
"""The user's cache: GGUF files packed once into packages, presets' packages, and the demo model.

packages/<key>/       a package; <key> = SHA-256 of GGUF content, compute class and packer version, or of a
                      preset's name, target and version
packages/<key>.id     SHA-256 of its manifest, written last: says that the package is complete
models/<name>.gguf    fetched models
digests.json          (path, size, mtime, inode) -> SHA-256, so that a known file is not read again
locks/                one lock file per key
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from calrt.cache_files import cache_dir, file_digest, identity, key_lock, write_atomically
from calrt.gguf import read_gguf
from calrt.model_fetch import MODELS, ModelFetchError, fetch, model_path
from calrt.package_build import build_package, file_sha256
from calrt.package_manifest import PACKER_VERSION, compute_class
from calrt.progress import Progress, silent

__all__ = ["ModelFetchError", "cache_dir", "cached_package", "fetch", "model_path", "package_for"]

LOCK_TIMEOUT = 900.0  # seconds to wait for another process that packs the same file
_REHASH_LIMIT = 4 << 20  # artifacts up to this size are hashed again at every use


def package_for(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    compute: str = "auto",
    rebuild: bool = False,
    timeout: float = LOCK_TIMEOUT,
) -> Path:
    """The package to load for `path`: a package directory is returned as it is, a GGUF is packed once.

    A name of a fetched model ("smollm2") works too, unless a file of that name exists. Two processes may ask
    for the same file: one packs, the other waits up to `timeout` seconds. A damaged cache entry is rebuilt
    once, with a warning; `rebuild` forces that.

    Raises `FileNotFoundError`, `GgufError` for a file that cannot be packed, `TimeoutError`, `OSError`.
    """
    source = Path(path)
    if not source.exists():
        fetched = model_path(str(path))
        if fetched is None:
            hint = f" (calrt model fetch {path} gets it)" if str(path) in MODELS else ""
            raise FileNotFoundError(f"{path}: no such GGUF file or package directory{hint}")
        source = fetched
    if source.is_dir():
        return source
    report = silent if progress is None else progress
    if compute == "auto":
        compute = compute_class(read_gguf(source))
    digest = file_digest(source, report)
    before = identity(source)

    def build(target: Path) -> None:
        build_package(source, target, compute=compute, digest=digest, progress=report)
        if identity(source) != before:
            shutil.rmtree(target)
            raise OSError(f"{source.name} changed while it was packed: try again")

    what = f"{digest} {compute} {PACKER_VERSION}"
    return cached_package(what, source.name, build, rebuild=rebuild, timeout=timeout)


def cached_package(
    what: str,
    name: str,
    build: Callable[[Path], object],
    *,
    rebuild: bool = False,
    timeout: float = LOCK_TIMEOUT,
) -> Path:
    """The cache's package of all that `what` says, made by `build(target)` if it is not there or damaged.

    `name` is for people. Two processes may ask at once: one builds, the other waits up to `timeout` seconds.
    """
    key = hashlib.sha256(what.encode()).hexdigest()
    target = cache_dir() / "packages" / key
    if not rebuild and _is_complete(target):
        return target
    with key_lock(key, timeout):
        if not rebuild and _is_complete(target):  # built by the process we waited for
            return target
        if target.exists():
            if not rebuild:
                warnings.warn(f"the cached package of {name} is damaged: packing it again", stacklevel=3)
            _discard(target)
        for left in target.parent.glob(f".{key}.*.part"):  # by a packer that was killed
            shutil.rmtree(left, ignore_errors=True)
        build(target)
        write_atomically(_stamp(target), file_sha256(target / "manifest.json").encode())
    return target


def _stamp(package: Path) -> Path:
    return package.with_name(package.name + ".id")


def _is_complete(package: Path) -> bool:
    """Whether a cached package is whole: manifest untouched, every size right, small files' digests too.

    Large files are not read: their size is all that is looked at.
    """
    try:
        data = (package / "manifest.json").read_bytes()
        if hashlib.sha256(data).hexdigest() != _stamp(package).read_text("ascii").strip():
            return False
        for artifact in json.loads(data)["artifacts"]:
            file = package / artifact["path"]
            if file.stat().st_size != artifact["bytes"]:
                return False
            if artifact["bytes"] <= _REHASH_LIMIT and file_sha256(file) != artifact["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _discard(package: Path) -> None:
    """Removes a package; the stamp first, so that a half-removed one never counts as complete."""
    _stamp(package).unlink(missing_ok=True)
    shutil.rmtree(package)
