# SPDX-License-Identifier: Apache-2.0
"""The oracle that judges the devices is itself judged: by published logits and text, and by arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calrt.gguf import read_gguf
from calrt.tokenizer import Tokenizer
from oracle import Oracle, mean_kl, relative_rms
from shared_files import shared, smollm2, stories
from tiny_gguf import TYPE_NUMBERS, make_llama

STORY = (
    " Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big, red ball. She wanted to play with it, but it was too high."
)


def test_golden_logits() -> None:
    folder = shared("research", "package-format", "stories260K", "golden")
    tokens = np.fromfile(folder / "tokens.i32", "<i4")
    golden = np.fromfile(folder / "logits.f32", "<f4").reshape(64, 512)
    found = Oracle(stories()).logits(tokens.tolist())
    assert np.abs(found - golden).max() < 2e-6
    assert (found.argmax(axis=1) == golden.argmax(axis=1)).all()


def test_the_published_story() -> None:
    tokenizer = Tokenizer.from_gguf(read_gguf(stories()).metadata)
    ids = Oracle(stories()).greedy(tokenizer.encode(""), 80)
    assert tokenizer.decode(ids).startswith(STORY)


def test_smollm2_knows_paris() -> None:
    tokenizer = Tokenizer.from_gguf(read_gguf(smollm2()).metadata)
    ids = Oracle(smollm2()).greedy(tokenizer.encode("The capital of France is"), 1)
    assert tokenizer.decode(ids) == " Paris"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", TYPE_NUMBERS)
def test_causal_and_finite(kind: str, tied: bool, tmp_path: Path) -> None:
    oracle = Oracle(make_llama(tmp_path / "t.gguf", tensor_type=kind, tied=tied, seed=3))
    tokens = np.random.default_rng(0).integers(0, 384, 24).tolist()
    whole = oracle.logits(tokens)
    assert np.isfinite(whole).all()
    assert whole.std() > 0.5
    np.testing.assert_allclose(oracle.logits(tokens[:9]), whole[:9], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(oracle.logits(tokens, [3, 20]), whole[[3, 20]])


def test_position_matters(tmp_path: Path) -> None:
    oracle = Oracle(make_llama(tmp_path / "t.gguf"))
    assert relative_rms(oracle.logits([5, 6, 7])[2], oracle.logits([6, 5, 7])[2]) > 1e-3


def test_a_sequence_goes_on(tmp_path: Path) -> None:
    oracle = Oracle(make_llama(tmp_path / "t.gguf"))
    tokens = np.random.default_rng(1).integers(0, 384, 20).tolist()
    sequence = oracle.sequence()
    parts = [sequence.feed(tokens[:7]), sequence.feed(tokens[7:8]), sequence.feed(tokens[8:])]
    assert sequence.length == 20
    np.testing.assert_allclose(np.concatenate(parts), oracle.logits(tokens), rtol=0, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_shift_is_a_fresh_sequence_in_one_layer_only(layers: int, tmp_path: Path) -> None:
    oracle = Oracle(make_llama(tmp_path / "t.gguf", layers=layers))
    tokens = np.random.default_rng(2).integers(0, 384, 30).tolist()
    shifted, fresh = oracle.sequence(), oracle.sequence()
    shifted.feed(tokens)
    shifted.shift(4, 11)
    fresh.feed(tokens[:4] + tokens[15:])
    assert shifted.length == fresh.length == 19
    for layer in range(layers):
        same = np.allclose(shifted.keys[layer], fresh.keys[layer], rtol=0, atol=1e-9)
        assert same == (layer == 0)
    error = relative_rms(shifted.feed([5, 6, 7]), fresh.feed([5, 6, 7]))
    assert (error < 1e-9) == (layers == 1)
    with pytest.raises(ValueError, match="discard=0"):
        shifted.shift(0, 0)


def test_bf16_rounding_is_small_but_there(tmp_path: Path) -> None:
    path = make_llama(tmp_path / "t.gguf")
    exact, rounded = Oracle(path).logits(range(16)), Oracle(path, "bf16").logits(range(16))
    assert 1e-5 < relative_rms(rounded, exact) < 3e-2
    assert 0 < mean_kl(rounded, exact) < 1e-2
    assert mean_kl(exact, exact) == 0


def test_tokens_outside_the_vocabulary(tmp_path: Path) -> None:
    oracle = Oracle(make_llama(tmp_path / "t.gguf"))
    for tokens in ([], [-1], [384]):
        with pytest.raises(ValueError, match=r"0\.\.383"):
            oracle.logits(tokens)
