# SPDX-License-Identifier: Apache-2.0
"""The fuzz target of GGUF reading: libFuzzer for Python. fuzz_gguf.py [libFuzzer options] CORPUS...

Run by tools/fuzz.py. An exception that is not a refusal ends the run and leaves its input behind.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import types
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gguf_mutator
import gguf_property

READERS = ("gguf", "gguf_tensors", "package_manifest", "pretokenizers", "tokenizer", "vocabulary")

_FOLDER = tempfile.TemporaryDirectory(prefix="calrt-fuzz-")
_FILE = Path(_FOLDER.name) / "fuzz.gguf"


def one_input(data: bytes) -> None:
    gguf_property.check(data, _FILE)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Half of the time by parts, else by bytes."""
    if seed % 2:
        changed = gguf_mutator.mutated(data, seed)
        if changed is not None and len(changed) <= max_size:
            return changed
    return bytes(atheris.Mutate(data, max_size))


def instrument() -> None:
    """Counts the readers' branches. Not by atheris's import hook, which an editable install's own evades."""
    modules = {f"calrt.{name}" for name in READERS}
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType) and thing.__module__ in modules:
            atheris.instrument_func(thing)


if __name__ == "__main__":
    instrument()
    atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
    atheris.Fuzz()
