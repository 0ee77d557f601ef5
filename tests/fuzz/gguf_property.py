# SPDX-License-Identifier: Apache-2.0
"""What must hold for any bytes that claim to be a GGUF file: a result or a clear refusal, nothing else."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from calrt import gguf
from calrt.errors import CalrtError
from calrt.gguf import GgufError, GgufFile, parse_gguf, read_gguf
from calrt.gguf_tensors import SUPPORTED_TYPES, load, to_bf16_bits
from calrt.package_manifest import check_vocabulary, read_model
from calrt.tokenizer import Tokenizer

REFUSALS = (GgufError, CalrtError)
_TEXT = "The quick brown fox <|im_end|> \u00e9\u4e16\U0001f600\n"
_FIRST_READ = 256  # small, so that read_gguf() has to read on


def check(data: bytes, path: Path) -> None:
    """Reads `data` in every way calrt does. `path` is a file to write it to."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a wrong number about to be used
        head = _parsed(data)
        _same_from_disk(data, path, head)
        if head is None:
            return
        _model(head)
        _tokens(head)
        _numbers(data, head)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A refusal ends the block; it must say something."""
    try:
        yield
    except REFUSALS as error:
        if not str(error):
            raise AssertionError(f"{type(error).__name__} without a text") from error


def _parsed(data: bytes) -> GgufFile | None:
    with _told():
        return parse_gguf(data)
    return None


def _same_from_disk(data: bytes, path: Path, head: GgufFile | None) -> None:
    path.write_bytes(data)
    found = None
    with mock.patch.object(gguf, "_FIRST_READ", _FIRST_READ), _told():
        found = read_gguf(path)
    assert (found is None) == (head is None), "read_gguf and parse_gguf differ"
    if found is not None and head is not None:
        assert found.metadata_bytes == head.metadata_bytes
        assert found.tensors == head.tensors


def _model(head: GgufFile) -> None:
    with _told():
        check_vocabulary(head, read_model(head))


def _tokens(head: GgufFile) -> None:
    tokenizer = None
    with _told():
        tokenizer = Tokenizer.from_gguf(head.metadata)
    if tokenizer is None:
        return
    ids = tokenizer.encode(_TEXT, parse_special=True)
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert len(ids) >= tokenizer.fewest("the")
    tokenizer.decode(ids, special=True)


def _numbers(data: bytes, head: GgufFile) -> None:
    for tensor in head.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(data)
        if tensor.type.name in SUPPORTED_TYPES:
            with np.errstate(all="ignore"):  # infinities and NaN are data here
                values = load(io.BytesIO(data), tensor)
            assert values.shape == tensor.shape
            assert values.dtype == np.float32
            assert to_bf16_bits(values[np.isfinite(values)]).dtype == np.uint16
