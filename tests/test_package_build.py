# SPDX-License-Identifier: Apache-2.0
"""Packing: the manifest follows manifest-1, the weights are the file's, equal input gives equal bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from calrt.gguf import GgufError, parse_gguf, read_gguf
from calrt.gguf_tensors import load
from calrt.package_build import build_package
from calrt.package_manifest import cell_range
from shared_files import shared, stories
from tiny_gguf import (
    CHAT_TEMPLATE,
    TYPE_NUMBERS,
    gguf_bytes,
    llama_metadata,
    llama_tensors,
    make_llama,
    spm_metadata,
)

Json = dict[str, Any]


def manifest_of(package: Path) -> Json:
    found: Json = json.loads((package / "manifest.json").read_bytes())
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def variant(path: Path, changes: Json | None = None, drop: str = "", tensors: Any = None) -> Path:
    """A tiny model with some keys changed (None deletes) or a tensor dropped."""
    metadata = llama_metadata() | spm_metadata() | (changes or {})
    metadata = {key: value for key, value in metadata.items() if value is not None}
    rows = llama_tensors() if tensors is None else tensors
    path.write_bytes(gguf_bytes(metadata, [row for row in rows if row[0] != drop]))
    return path


# ---- the example of the specification -------------------------------------------------------------


def test_matches_the_published_package(tmp_path: Path) -> None:
    example = shared("research", "package-format", "stories260K")
    package = build_package(stories(), tmp_path / "p")
    assert (package / "weights.bin").read_bytes() == (example / "weights.bin").read_bytes()
    assert (package / "vocab.gguf").read_bytes() == (example / "vocab.gguf").read_bytes()
    found, wanted = manifest_of(package), manifest_of(example)
    for key in (
        "model",
        "tokenizer",
        "target",
        "weights",
        "graphs",
        "kv",
        "allowed",
        "memory",
        "parallelism",
    ):
        assert found[key] == wanted[key], key
    kept = [a for a in wanted["artifacts"] if not a["role"].startswith("golden.")]
    assert found["artifacts"] == sorted(kept, key=lambda a: str(a["id"]))
    assert found.keys() == wanted.keys()
    assert found["provenance"].keys() == wanted["provenance"].keys()
    assert found["provenance"]["sources"] == wanted["provenance"]["sources"]
    assert found["versions"]["driver_abi"] == {"min": [0, 1], "below": [2, 0]}


# ---- contents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", TYPE_NUMBERS)
def test_weights_are_the_files_tensors(kind: str, tied: bool, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "tiny.gguf", tensor_type=kind, tied=tied, seed=5)
    package = build_package(source, tmp_path / "p")
    manifest = manifest_of(package)
    weights = (package / "weights.bin").read_bytes()
    compute = "f32" if kind == "F32" else "bf16"
    assert manifest["allowed"]["compute"][0] == compute
    assert manifest["model"]["params"]["tie_embeddings"] is tied
    gguf = read_gguf(source)
    assert [row[0] for row in manifest["weights"]["rows"]] == list(gguf.tensors)
    end = 0
    with open(source, "rb") as file:
        for name, dtype, shape, offset, nbytes in manifest["weights"]["rows"]:
            wanted = load(file, gguf.tensors[name])
            assert dtype == ("f32" if len(shape) == 1 else compute)
            numpy_dtype = np.dtype(np.float32 if dtype == "f32" else ml_dtypes.bfloat16)
            found = np.frombuffer(weights[offset : offset + nbytes], numpy_dtype).reshape(shape)
            np.testing.assert_array_equal(found, wanted.astype(numpy_dtype))
            assert offset % 64 == 0
            assert 0 <= offset - end < 64
            end = offset + nbytes
    assert end == len(weights)


@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_compute_class_can_be_chosen(compute: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "tiny.gguf", tensor_type="Q8_0")
    manifest = manifest_of(build_package(source, tmp_path / "p", compute=compute))
    other = "bf16" if compute == "f32" else "f32"
    for key in ("compute", "kv_dtype", "logits_dtype"):
        assert manifest["allowed"][key] == [compute, other]
    assert manifest["kv"]["dtype"] == [compute, other]
    assert {graph["outputs"][0]["dtype"] for graph in manifest["graphs"]} == {compute}
    with pytest.raises(ValueError, match="compute='int3'"):
        build_package(source, tmp_path / "q", compute="int3")


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE])
def test_artifacts_match_their_files(tokenizer: str, template: str | None, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "tiny.gguf", tokenizer=tokenizer, chat_template=template)
    package = build_package(source, tmp_path / "p")
    manifest = manifest_of(package)
    listed = {"manifest.json"}
    for artifact in manifest["artifacts"]:
        data = (package / artifact["path"]).read_bytes()
        assert artifact["bytes"] == len(data)
        assert artifact["sha256"] == hashlib.sha256(data).hexdigest()
        listed.add(artifact["path"])
    assert set(files_of(package)) == listed
    assert [a["id"] for a in manifest["artifacts"]] == sorted(a["id"] for a in manifest["artifacts"])
    vocab = parse_gguf((package / "vocab.gguf").read_bytes())
    assert not vocab.tensors
    assert vocab.metadata_bytes == read_gguf(source).metadata_bytes
    section = manifest["tokenizer"]
    assert section["add_bos"] is (tokenizer == "spm")
    assert section["vocab"] == 384
    if template is None:
        assert section["template"] is None
    else:
        assert section["template"] == "template"
        assert (package / "chat_template.jinja").read_text() == template


def test_end_ids_reach_the_manifest(tmp_path: Path) -> None:
    spm = manifest_of(build_package(make_llama(tmp_path / "a.gguf"), tmp_path / "a"))
    assert spm["model"]["params"]["eos"] == [2]
    bpe = manifest_of(build_package(make_llama(tmp_path / "b.gguf", tokenizer="bpe"), tmp_path / "b"))
    assert bpe["model"]["params"]["eos"] == [
        2,
        0,
    ]  # <|im_end|> is declared, <|endoftext|> is found by its text
    extra = variant(
        tmp_path / "c.gguf", {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 1 << 32}
    )
    assert manifest_of(build_package(extra, tmp_path / "c"))["model"]["params"]["eos"] == [2, 7]


@pytest.mark.parametrize(
    ("context", "cells", "chunks"),
    [
        (2048, (64, 2048, 64), [16, 64, 256]),
        (128, (64, 128, 64), [16, 64]),
        (100, (64, 100, 4), [16, 64]),
        (2047, (64, 2047, 1), [16, 64, 256]),
        (48, (16, 48, 16), [16]),
        (8, (8, 8, 8), [8]),
        (1, (1, 1, 1), [1]),
    ],
)
def test_geometry_follows_the_context(
    context: int, cells: tuple[int, int, int], chunks: list[int], tmp_path: Path
) -> None:
    manifest = manifest_of(build_package(make_llama(tmp_path / "t.gguf", context=context), tmp_path / "p"))
    wanted = dict(zip(("min", "max", "step"), cells, strict=True))
    assert (
        manifest["allowed"]["cells"] == manifest["kv"]["groups"][0]["cells"] == wanted == cell_range(context)
    )
    assert (cells[1] - cells[0]) % cells[2] == 0
    assert manifest["allowed"]["chunks"] == manifest["graphs"][1]["chunk"] == chunks


def test_byte_equal_on_repeat(tmp_path: Path) -> None:
    source = make_llama(
        tmp_path / "tiny.gguf", tensor_type="Q4_1", tokenizer="bpe", chat_template=CHAT_TEMPLATE
    )
    first, second = build_package(source, tmp_path / "a"), build_package(source, tmp_path / "b")
    assert files_of(first) == files_of(second)
    text = (first / "manifest.json").read_text()
    assert text.startswith('{\n  "manifest": "manifest-1"')
    assert text.endswith("}\n")


def test_names_are_made_fit_to_show(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "a\u202eb\tc.gguf")
    assert manifest_of(build_package(source, tmp_path / "p"))["model"]["name"] == "abc"


# ---- refusals -------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Json, str]] = {
    "architecture": ({"general.architecture": "mamba"}, "general.architecture is 'mamba'"),
    "no architecture": ({"general.architecture": None}, "'general.architecture' is missing"),
    "no layers": ({"llama.block_count": None}, "'llama.block_count' is missing"),
    "layers 0": ({"llama.block_count": 0}, "llama.block_count is 0"),
    "layers too many": ({"llama.block_count": 1 << 30}, "but the file has only 21 tensors"),
    "layers too few": ({"llama.block_count": 1}, "'blk.1.attn_norm.weight' is not part"),
    "heads": ({"llama.attention.head_count": 3}, "64 is not a multiple of llama.attention.head_count 3"),
    "kv heads": ({"llama.attention.head_count_kv": 3}, "4 attention heads are not a multiple of 3"),
    "kv heads shape": (
        {"llama.attention.head_count_kv": 4},
        r"attn_k.weight': shape \[64, 64\] wanted, \[32, 64\]",
    ),
    "value length": ({"llama.attention.value_length": 8}, "value_length 8 differs from the key length 16"),
    "rope dim": ({"llama.rope.dimension_count": 17}, "dimension_count is 17"),
    "rope scaling": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
        "scaling.type 'yarn' with factor 4.0",
    ),
    "experts": ({"llama.expert_count": 8}, "mixture-of-experts"),
    "epsilon": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "norm epsilon 0.0 must be above 0"),
    "context type": ({"llama.context_length": "long"}, "'llama.context_length': wanted an unsigned integer"),
    "no vocabulary": ({"tokenizer.ggml.tokens": None}, "'tokenizer.ggml.tokens' is missing"),
    "vocabulary kind": ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model is 'bert'"),
    "scores": ({"tokenizer.ggml.scores": np.zeros(3, np.float32)}, "has 3 entries, .* has 384"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name: str, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(GgufError, match=f"bad.gguf: .*{message}"):
        build_package(variant(tmp_path / "bad.gguf", changes), tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_more_tokens_than_logits(tmp_path: Path) -> None:
    source = variant(tmp_path / "bad.gguf", tensors=llama_tensors(vocab=383))
    with pytest.raises(GgufError, match=r"has 384 tokens, but token_embd\.weight has only 383 rows"):
        build_package(source, tmp_path / "p")


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_up.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=f"'{name}' is missing"):
        build_package(variant(tmp_path / "bad.gguf", drop=name), tmp_path / "p")


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number(kind: str, value: float, tmp_path: Path) -> None:
    tensors = llama_tensors(tensor_type=kind)
    tensors[3][2][1, 2] = value
    with pytest.raises(GgufError, match=rf"'{tensors[3][0]}' holds a value that is not finite"):
        build_package(variant(tmp_path / "bad.gguf", tensors=tensors), tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_target_exists(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    with pytest.raises(FileExistsError, match="exists"):
        build_package(make_llama(tmp_path / "t.gguf"), tmp_path / "p")


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "t.gguf")

    def stop(what: str, done: int, total: int, /) -> None:
        if what.startswith("packing") and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_package(source, tmp_path / "p", progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["t.gguf"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    build_package(make_llama(tmp_path / "t.gguf"), tmp_path / "p", progress=lambda *a: seen.append(a))
    phases = dict.fromkeys(what for what, _, _ in seen)
    assert list(phases) == ["reading t.gguf", "packing t.gguf"]
    for phase in phases:
        steps = [(done, total) for what, done, total in seen if what == phase]
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
