# SPDX-License-Identifier: Apache-2.0
"""Packs a GGUF file into a calrt package: weights in the compute dtype, the vocabulary, and a manifest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from calrt.gguf import MAGIC, GgufError, GgufFile, read_gguf
from calrt.gguf_tensors import decode, raw_pieces, to_bf16_bits
from calrt.package_manifest import (
    WEIGHT_ALIGN,
    Json,
    Source,
    build_manifest,
    check_vocabulary,
    compute_class,
    manifest_bytes,
    read_model,
    stored_dtype,
)
from calrt.progress import Progress, silent
from calrt.regular_file import open_regular

_HASH_PIECE = 1 << 20


def file_sha256(path: str | os.PathLike[str], progress: Progress = silent, what: str = "reading") -> str:
    """SHA-256 of a file as 64 hex digits, read in pieces."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size
        done = 0
        while piece := file.read(_HASH_PIECE):
            digest.update(piece)
            done += len(piece)
            progress(what, min(done, total), total)
    return digest.hexdigest()


def build_package(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    compute: str = "auto",
    digest: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Packs the GGUF file `source` into the new package directory `target` and returns its path.

    `compute` is "auto", "f32" or "bf16"; auto is f32 for a file whose tensors are all F32, else bf16.
    `digest` is the file's SHA-256 when the caller already knows it. The directory appears complete or not at
    all, and the same file gives the same bytes every time.

    Raises `GgufError` (a ValueError) when the file is damaged or holds an unsupported model,
    `FileExistsError` when `target` exists, `OSError` when reading or writing fails.
    """
    source, target = Path(source), Path(target)
    gguf = read_gguf(source)
    try:
        model = read_model(gguf)
        vocabulary = check_vocabulary(gguf, model)
        compute = compute_class(gguf) if compute == "auto" else compute
        if compute not in ("f32", "bf16"):
            raise ValueError(f"compute={compute!r}; wanted auto, f32 or bf16")
    except GgufError as error:
        raise GgufError(f"{source.name}: {error}") from None
    if target.exists():
        raise FileExistsError(f"{target} exists; remove it or choose another directory")
    origin = Source(source.name, gguf.size, digest or file_sha256(source, progress, f"reading {source.name}"))

    with new_directory(target) as work:
        with open(source, "rb") as file:
            weights, rows = _write_weights(work / "weights.bin", file, gguf, compute, progress, source.name)
        artifacts = [weights, _write_vocab(work / "vocab.gguf", gguf)]
        if vocabulary.chat_template is not None:
            artifacts.append(write_template(work / "chat_template.jinja", vocabulary.chat_template))
        manifest = build_manifest(gguf, model, vocabulary, compute, origin, artifacts, rows)
        write_file(work / "manifest.json", lambda out: out.write(manifest_bytes(manifest)))
    return target


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes `target` when the block ends, and vanishes when it raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield work
        work.chmod(0o755)
        _sync_directory(work)
        os.rename(work, target)
        _sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


class HashingWriter:
    """Counts and hashes what goes into a file of a package."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.nbytes = 0

    def write(self, data: Any) -> None:
        """Appends what a buffer holds."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self.nbytes += len(view)

    def artifact(self, name: str, path: Path, role: str, media_type: str) -> Json:
        """The manifest's entry of the file, once it is whole."""
        return {
            "id": name,
            "path": path.name,
            "role": role,
            "media_type": media_type,
            "bytes": self.nbytes,
            "sha256": self._digest.hexdigest(),
        }


def write_file(path: Path, fill: Callable[[HashingWriter], Any]) -> HashingWriter:
    """Creates `path`, lets `fill` write it, and makes it durable."""
    with open(path, "xb") as file:
        writer = HashingWriter(file)
        fill(writer)
        file.flush()
        os.fsync(file.fileno())
    return writer


def _write_weights(
    path: Path, source: BinaryIO, gguf: GgufFile, compute: str, progress: Progress, name: str
) -> tuple[Json, list[list[Any]]]:
    rows: list[list[Any]] = []
    total = sum(tensor.nbytes for tensor in gguf.tensors.values())

    def fill(out: HashingWriter) -> None:
        done = 0
        for tensor in gguf.tensors.values():
            out.write(bytes(-out.nbytes % WEIGHT_ALIGN))
            start = out.nbytes
            dtype = stored_dtype(tensor, compute)
            for raw in raw_pieces(source, tensor):
                out.write(_convert(tensor.name, tensor.type.name, raw, dtype))
                done += len(raw)
                progress(f"packing {name}", done, total)
            rows.append([tensor.name, dtype, list(tensor.shape), start, out.nbytes - start])

    writer = write_file(path, fill)
    return writer.artifact("weights", path, "weights", "application/vnd.calrt.tensors"), rows


def _convert(name: str, kind: str, raw: Any, dtype: str) -> Any:
    """Whole blocks of one GGUF type in the package's dtype. A number that is not finite is refused."""
    if kind == "BF16" and dtype == "bf16":
        bits = raw.view("<u2")
    else:
        values = decode(kind, raw)
        if dtype == "f32":
            if not np.isfinite(values).all():
                raise GgufError(f"tensor {name!r} holds a value that is not finite")
            return values.astype("<f4", copy=False)
        bits = to_bf16_bits(values)
    if ((bits & 0x7F80) == 0x7F80).any():
        raise GgufError(f"tensor {name!r} holds a value that is not finite in BF16")
    return bits.astype("<u2", copy=False)


def _write_vocab(path: Path, gguf: GgufFile) -> Json:
    """The same GGUF with all its metadata and no tensor."""
    header = MAGIC + struct.pack("<IQQ", gguf.version, 0, gguf.metadata_count)
    writer = write_file(path, lambda out: out.write(header + gguf.metadata_bytes))
    return writer.artifact("vocab", path, "tokenizer.vocab", "application/vnd.gguf")


def write_template(path: Path, template: str) -> Json:
    """Creates a package's chat template; its entry in the manifest."""
    writer = write_file(path, lambda out: out.write(template.encode("utf-8")))
    return writer.artifact("template", path, "tokenizer.template", "text/x-jinja")


def _sync_directory(path: Path) -> None:
    # Some file systems cannot sync a directory; the rename is still atomic there.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
