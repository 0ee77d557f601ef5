# SPDX-License-Identifier: Apache-2.0
"""What fuzzing GGUF reading once found stays found: every input of the corpus, without a fuzzer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(FUZZ))

from gguf_mutator import mutated  # noqa: E402
from gguf_property import check  # noqa: E402

from calrt.gguf import parse_gguf  # noqa: E402

CORPUS = sorted((FUZZ / "corpus/gguf").iterdir())


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_input(path: Path, tmp_path: Path) -> None:
    check(path.read_bytes(), tmp_path / "input.gguf")


def test_neighbours_of_the_seeds(tmp_path: Path) -> None:
    """The mutator makes files that are read to their end, and files that are refused."""
    sound = 0
    for seed in range(300):
        changed = mutated(CORPUS[seed % len(CORPUS)].read_bytes(), seed)
        if changed is None:
            continue
        check(changed, tmp_path / "input.gguf")
        try:
            parse_gguf(changed)
        except ValueError:
            continue
        sound += 1
    assert 30 < sound < 300
