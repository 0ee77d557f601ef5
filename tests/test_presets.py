# SPDX-License-Identifier: Apache-2.0
"""Presets: what their packages allow, that they are sound, built once, and made for one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calrt
from calrt.gguf import parse_gguf
from calrt.preset_vocabulary import CONTROLS, FEWEST, made_up_vocabulary, vocabulary_gguf
from calrt.presets import PRESETS, build_preset, preset_for, preset_name
from calrt.tokenizer import Tokenizer
from calrt.vocabulary import read_vocabulary

SMALL = ("tiny", "bare", "dual-chip")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CALRT_CACHE", str(folder))
    return folder


def manifest_of(package: Path) -> Any:
    return json.loads((package / "manifest.json").read_text())


# ---- packages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "weights"),
    [("mock", False), ("null", False), *((driver, True) for driver in ("mock", "null", "cpu", "vendor"))],
)
@pytest.mark.parametrize("name", SMALL)
def test_a_package_passes_every_check(name: str, driver: str, weights: bool, tmp_path: Path) -> None:
    device_class = "vendor-1" if driver == "vendor" else None
    folder = build_preset(
        name, driver=driver, device_class=device_class, weights=weights, folder=tmp_path / "package"
    )
    package = calrt.Package.open(str(folder))
    assert json.loads(package.verdict_json())["findings"] == []
    assert package.verdict == "pass"
    assert package.name == f"preset:{name}"
    manifest = manifest_of(folder)
    assert manifest["provenance"]["kind"] == "standin"
    assert (manifest["weights"] is not None) == weights
    assert sum(file.stat().st_size for file in folder.iterdir()) < 300_000


@pytest.mark.parametrize("weights", [False, True])
def test_the_large_one_passes_and_stays_small(weights: bool) -> None:
    folder = build_preset("qwen3-30b-a3b", weights=weights)
    package = calrt.Package.open(str(folder))
    assert package.verdict == "pass"
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert size < (50_000_000 if weights else 6_000_000)


def test_what_the_packages_allow() -> None:
    def facts(name: str, **options: Any) -> dict[str, Any]:
        manifest = manifest_of(build_preset(name, **options))
        decode, prefill = manifest["graphs"]
        allowed = manifest["allowed"]
        return {
            "class": manifest["target"]["device_class"],
            "vocab": (manifest["model"]["vocab"], manifest["tokenizer"]["vocab"]),
            "lanes": allowed["lanes"],
            "cells": allowed["cells"],
            "profiles": decode["batch"],
            "chunks": prefill["chunk"],
            "lane_map": (decode["lane_map"], prefill["lane_map"]),
            "logits": allowed["logits_dtype"],
            "tile": decode["outputs"][0]["layout"].get("tile", {}).get("size"),
            "kv": sorted(name for name, cap in manifest["kv"]["caps"].items() if cap["value"]),
            "where": (allowed["parallel"], allowed["placement"], manifest["parallelism"]["chips"]),
        }

    every = ["k_rotate", "kv_read", "kv_write", "lane_copy", "range_copy"]
    cells = {"min": 64, "max": 4096, "step": 64}
    assert facts("tiny") == {
        "class": "mock-tiny",
        "vocab": (512, 512),
        "lanes": {"min": 1, "max": 16, "step": 1},
        "cells": cells,
        "profiles": [1, 4, 8, 16],
        "chunks": [16, 64],
        "lane_map": ("any", "any"),
        "logits": ["f32", "bf16"],
        "tile": None,
        "kv": every,
        "where": (["none"], ["any", "chip:0"], 1),
    }
    assert facts("bare") == {
        "class": "mock-bare",
        "vocab": (512, 512),
        "lanes": [1],
        "cells": cells,
        "profiles": [1],
        "chunks": [64],
        "lane_map": ("none", "none"),
        "logits": ["bf16"],
        "tile": 16,
        "kv": [],
        "where": (["none"], ["any", "chip:0"], 1),
    }
    assert facts("qwen3-30b-a3b") == {
        "class": "mock-qwen3-30b-a3b",
        "vocab": (151_936, 151_936),
        "lanes": [1],
        "cells": [40_960],
        "profiles": [1],
        "chunks": [64, 256],
        "lane_map": ("none", "none"),
        "logits": ["bf16"],
        "tile": 16,
        "kv": every,
        "where": (["tensor"], ["any", "chips:0+1"], 2),
    }
    twin = {
        "class": "mock-dual-chip",
        "vocab": (512, 512),
        "lanes": [4],
        "cells": cells,
        "profiles": [1, 4],
        "chunks": [16, 64],
        "lane_map": ("identity", "any"),
        "logits": ["bf16", "f32"],
        "tile": None,
        "kv": every,
    }
    assert facts("dual-chip") == twin | {"where": (["none"], ["chip:0", "chip:1"], 2)}
    tensor = facts("dual-chip", parallel="tensor")
    assert tensor == twin | {"where": (["tensor"], ["chips:0+1"], 2)}


def test_a_large_kv_is_what_the_model_would_take() -> None:
    kv = manifest_of(build_preset("qwen3-30b-a3b"))["kv"]
    per_cell = 2 * kv["layers"] * kv["heads"] * kv["head_dim"] * 2
    assert per_cell * 40_960 == 4_026_531_840  # 3.750 GiB


def test_random_weights_are_always_the_same(tmp_path: Path) -> None:
    one = build_preset("tiny", driver="cpu", folder=tmp_path / "one")
    two = build_preset("tiny", driver="cpu", folder=tmp_path / "two")
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes(), file.name


# ---- the cache --------------------------------------------------------------------------------------


def test_a_preset_is_built_once(cache: Path) -> None:
    first = build_preset("tiny")
    made = (first / "manifest.json").stat().st_mtime_ns
    assert first.parent == cache / "packages"
    assert build_preset("tiny") == first
    assert (first / "manifest.json").stat().st_mtime_ns == made


def test_each_kind_has_a_place_of_its_own() -> None:
    kinds = [
        build_preset("tiny"),
        build_preset("bare"),
        build_preset("tiny", weights=True),
        build_preset("tiny", driver="null"),
        build_preset("tiny", device_class="mock-other"),
        build_preset("dual-chip"),
        build_preset("dual-chip", parallel="tensor"),
    ]
    assert len(set(kinds)) == len(kinds)


def test_another_version_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    old = build_preset("tiny")
    monkeypatch.setattr("calrt.presets.PRESET_VERSION", 99)
    assert build_preset("tiny") != old


def test_damage_is_noticed_and_repaired() -> None:
    package = build_preset("tiny")
    whole = (package / "vocab.gguf").read_bytes()
    (package / "vocab.gguf").write_bytes(whole[:-1] + b"\0")
    with pytest.warns(UserWarning, match="preset:tiny is damaged"):
        assert build_preset("tiny") == package
    assert (package / "vocab.gguf").read_bytes() == whole


def test_a_folder_of_ones_own_is_new(tmp_path: Path, cache: Path) -> None:
    made = build_preset("tiny", folder=tmp_path / "own")
    assert made == tmp_path / "own"
    assert not cache.exists()
    with pytest.raises(FileExistsError, match="own exists"):
        build_preset("tiny", folder=made)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "huge"}, r"no preset 'huge': tiny, bare, qwen3-30b-a3b, dual-chip"),
        ({"name": "tiny", "parallel": "tensor"}, r"parallel='tensor': preset:tiny has none"),
        ({"name": "dual-chip", "driver": "null", "parallel": "tensor"}, r"dual-chip has none for null"),
        ({"name": "tiny", "driver": "cpu", "weights": False}, r"needs weights"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, Any], says: str, cache: Path) -> None:
    with pytest.raises(ValueError, match=says):
        build_preset(**options)
    assert not cache.exists()


# ---- the vocabulary ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [FEWEST, 512, 10_000])
def test_a_vocabulary_reads_back(size: int) -> None:
    made = made_up_vocabulary(size)
    assert read_vocabulary(parse_gguf(vocabulary_gguf(made)).metadata) == made
    assert len(made.tokens) == size == len(set(made.tokens))
    assert [made.tokens[i] for i in made.eog] == [CONTROLS[2], CONTROLS[1]]


def test_the_largest_vocabulary_has_no_token_twice() -> None:
    tokens = made_up_vocabulary(151_936).tokens
    assert len(tokens) == len(set(tokens)) == 151_936
    assert max(map(len, tokens[: -len(CONTROLS)])) == 7  # a space and three syllables


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at least {FEWEST} tokens, not {FEWEST - 1}"):
        made_up_vocabulary(FEWEST - 1)


def test_text_goes_through_and_words_are_one_token() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = Tokenizer.from_gguf(parse_gguf(vocabulary_gguf(made_up_vocabulary(10_000))).metadata)
    for text in ("Once upon a time, 3 cats.\n", "日本語 büro 🙂", " bakotu mi"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode(text)[0] == tokenizer.bos == 9_999
    for token in range(256, 9_997, 7):
        text = tokenizer.decode([token])
        assert text.strip().isalpha()
        assert tokenizer.encode(text, add_special=False) == [token]
    assert tokenizer.encode(CONTROLS[1], False, parse_special=True) == [9_998]


# ---- devices ----------------------------------------------------------------------------------------


def test_a_preset_has_lanes_and_cells_of_its_own() -> None:
    with calrt.open("null") as device:
        with device.load("preset:tiny") as model:
            assert (model.lanes, model.cells) == (4, 512)
            assert model.graphs["decode_b16"].lane_map == "any"
            with model.reload() as again:
                assert (again.lanes, again.cells) == (4, 512)
        with device.load("preset:tiny", lanes=2, cells=64) as model:
            assert (model.lanes, model.cells) == (2, 64)
        with device.load("preset:qwen3-30b-a3b") as model:
            assert (model.lanes, model.cells, model.vocab) == (1, 40_960, 151_936)
        with pytest.raises(calrt.InvalidArgumentError, match="lanes=17 not allowed"):
            device.load("preset:tiny", lanes=17)
        with pytest.raises(calrt.InvalidArgumentError, match="no preset 'x': tiny, bare"):
            device.load("preset:x")


@pytest.mark.parametrize("name", SMALL)
def test_null_goes_through_the_motions(name: str) -> None:
    with calrt.open("null") as device, device.load(f"preset:{name}") as model:
        assert device.package(f"preset:{name}").id == model.package.id
        assert len(model.generate([1, 2, 3], max_tokens=4, temperature=0)) == 4
        with model.sequence() as one:
            assert one.prefill(range(100)).shape == (512,)
            assert one.decode(1).shape == (512,)
            assert one.length == 101


@pytest.mark.parametrize("name", SMALL)
def test_cpu_computes_a_preset(name: str) -> None:
    pytest.importorskip("tokenizers")
    with calrt.open("cpu", threads=1) as device, device.load(f"preset:{name}") as model:
        text = model.generate("Once upon a time", max_tokens=24, temperature=0)
        assert sum(letter.isalpha() or letter == " " for letter in text) > 0.9 * len(text)
        assert len(set(text.split())) > 4
        with model.sequence() as sequence:
            whole = sequence.prefill([300, 301, 302]).to_f32()
            sequence.truncate(0)
            sequence.prefill([300, 301])
            assert np.array_equal(sequence.decode(302).to_f32(), whole)


def test_a_preset_is_for_the_mock_of_its_name() -> None:
    assert preset_for("bare", "mock", "mock-bare") == build_preset("bare")
    with pytest.raises(
        calrt.PackageError, match=r"mock:bare, this one is mock:tiny: load preset:tiny"
    ) as seen:
        preset_for("bare", "mock", "mock-tiny")
    assert seen.value.code is calrt.Status.VERSION_MISMATCH
    with pytest.raises(
        calrt.UnsupportedError, match=r"mock, null, cpu and calrt076, this device has driver vendor"
    ):
        preset_for("bare", "vendor", "npu")


def test_a_placement_chooses_the_mode() -> None:
    device = "mock", "mock-dual-chip"
    assert preset_for("dual-chip", *device) == build_preset("dual-chip")
    assert preset_for("dual-chip", *device, "auto", "chip:1") == build_preset("dual-chip")
    tensor = build_preset("dual-chip", parallel="tensor")
    assert preset_for("dual-chip", *device, "auto", "chips:0+1") == tensor
    assert preset_for("dual-chip", *device, "tensor") == tensor


def test_only_a_text_with_the_prefix_is_a_preset() -> None:
    assert preset_name("preset:tiny") == "tiny"
    assert preset_name("tiny") is None
    assert preset_name(Path("preset:tiny")) is None
    assert set(PRESETS) == {"tiny", "bare", "qwen3-30b-a3b", "dual-chip"}
