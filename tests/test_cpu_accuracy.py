# SPDX-License-Identifier: Apache-2.0
"""The cpu device against float64: SmolLM2 in bf16, stories260K in f32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt.package_build import build_package
from oracle import Oracle, mean_kl, relative_rms
from shared_files import shared, smollm2, stories

TEXT = (
    "The lighthouse stood at the end of a long stone pier, and every evening the keeper climbed its narrow "
    "stairs to light the lamp. On clear nights he could see the ships far out on the water, small as sparks; "
    "in fog he saw nothing at all, and so he rang the bell. One winter the sea froze near the shore, and a "
    "girl walked across the ice to ask him why the light still burned when no ship could come."
)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package(smollm2(), tmp_path_factory.mktemp("smollm2") / "package", compute="bf16")


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    """The file's own tensors, dequantised and not rounded: what the model means."""
    return Oracle(smollm2())


@pytest.fixture(scope="module")
def wanted(oracle: Oracle, package: Path) -> tuple[list[int], np.ndarray]:
    """About 90 tokens of English and the oracle's logits for each."""
    with calrt.open("cpu") as device, device.load(package, lanes=1, cells=256) as model:
        tokens = model.tokenizer.encode(TEXT)
    assert 80 <= len(tokens) <= 110
    return tokens, oracle.logits(tokens)


@pytest.fixture(params=["f32", "bf16"], ids=["logits-f32", "logits-bf16"])
def model(request: pytest.FixtureRequest, package: Path) -> Iterator[calrt.Model]:
    with (
        calrt.open("cpu", threads=2) as device,
        device.load(package, lanes=1, cells=256, compute="bf16", logits_dtype=request.param) as loaded,
    ):
        yield loaded


def all_logits(model: calrt.Model, tokens: list[int]) -> np.ndarray:
    with model.sequence() as sequence:
        return np.stack([sequence.decode(token).to_f32() for token in tokens])


def test_smollm2_logits(model: calrt.Model, wanted: tuple[list[int], np.ndarray]) -> None:
    tokens, reference = wanted
    found = all_logits(model, tokens)
    kl = mean_kl(found, reference)
    if model.info["logits_dtype"] == "bf16":
        assert kl < 1.5e-3
        return
    assert relative_rms(found, reference) < 1.5e-2
    assert kl < 5e-4


def test_smollm2_greedy_ids_where_the_oracle_is_sure(
    model: calrt.Model, wanted: tuple[list[int], np.ndarray]
) -> None:
    tokens, reference = wanted
    found = all_logits(model, tokens).argmax(axis=1)
    top = np.sort(reference, axis=1)
    sure = top[:, -1] - top[:, -2] > 0.5
    assert sure.sum() > len(tokens) // 3
    assert (found[sure] == reference.argmax(axis=1)[sure]).all()


def test_stories260k_matches_its_golden_run(tmp_path: Path) -> None:
    folder = shared("research", "package-format", "stories260K", "golden")
    tokens = np.fromfile(folder / "tokens.i32", "<i4")
    package = build_package(stories(), tmp_path / "stories", compute="f32")
    with calrt.open("cpu", threads=1) as device, device.load(package, lanes=1, cells=512) as model:
        golden = np.fromfile(folder / "logits.f32", "<f4").reshape(len(tokens), -1)
        assert golden.shape[1] == model.vocab
        found = all_logits(model, tokens.tolist())
    assert np.abs(found - golden).max() < 1e-3
    assert relative_rms(found, golden) < 1e-4
    assert (found.argmax(axis=1) == golden.argmax(axis=1)).all()
