# SPDX-License-Identifier: Apache-2.0
"""What a GGUF says about a llama model, and the `manifest-1` that describes the package made from it."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calrt.gguf import GgufError, GgufFile, TensorInfo
from calrt.gguf_tensors import check_supported
from calrt.vocabulary import Vocabulary, read_vocabulary

PACKER_VERSION = "0.2.0"  # part of every cache key: raise it whenever the packer's output changes
PROFILES = (1, 4, 8, 16)
CHUNKS = (16, 64, 256)
MAX_LANES = 64
WEIGHT_ALIGN = 64
_SPDX = {name.lower(): name for name in ("Apache-2.0", "MIT", "BSD-3-Clause", "CC-BY-4.0", "CC0-1.0")}

Json = dict[str, Any]
LINEAR: Json = {"kind": "linear"}


@dataclass(frozen=True)
class LlamaModel:
    """Geometry of a llama model. Sizes in elements; `context` and `vocab` in tokens."""

    vocab: int
    context: int
    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_dim: int
    rope_base: float
    norm_eps: float
    tied: bool

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the architecture has, with its shape (slowest dimension first)."""
        embed, query, keys = self.embed, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocab, embed),
            "output_norm.weight": (embed,),
        }
        if not self.tied:
            shapes["output.weight"] = (self.vocab, embed)
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (embed,)),
                ("attn_q", (query, embed)),
                ("attn_k", (keys, embed)),
                ("attn_v", (keys, embed)),
                ("attn_output", (embed, query)),
                ("ffn_norm", (embed,)),
                ("ffn_gate", (self.ffn, embed)),
                ("ffn_up", (self.ffn, embed)),
                ("ffn_down", (embed, self.ffn)),
            ):
                shapes[f"blk.{layer}.{name}.weight"] = shape
        return shapes


def read_model(gguf: GgufFile) -> LlamaModel:
    """The model in a GGUF. Raises `GgufError` naming what is missing, wrong or unsupported."""
    meta = gguf.metadata
    arch = meta.required("general.architecture", "text")
    if arch != "llama":
        raise GgufError(f"general.architecture is {arch!r}; calrt packs llama models")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError("tensor 'token_embd.weight' is missing or not a matrix")

    def positive(key: str, default: int | None = None) -> int:
        name = f"llama.{key}"
        value = meta.required(name, "uint") if default is None else meta.uint(name, default)
        if not 1 <= value < 1 << 31:
            raise GgufError(f"{name} is {value:,}; wanted 1 to 2,147,483,647")
        return int(value)

    embed, heads = positive("embedding_length"), positive("attention.head_count")
    if "llama.attention.key_length" not in meta and embed % heads:
        raise GgufError(
            f"llama.embedding_length {embed:,} is not a multiple of llama.attention.head_count {heads:,}"
        )
    head_dim = positive("attention.key_length", max(1, embed // heads))
    model = LlamaModel(
        vocab=embedding.shape[0],
        context=positive("context_length"),
        layers=positive("block_count"),
        embed=embed,
        heads=heads,
        kv_heads=positive("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=positive("feed_forward_length"),
        rope_dim=positive("rope.dimension_count", head_dim),
        rope_base=float(meta.real("llama.rope.freq_base", 10000.0)),
        norm_eps=float(meta.required("llama.attention.layer_norm_rms_epsilon", "real")),
        tied="output.weight" not in gguf.tensors,
    )
    _check_supported(gguf, model)
    _check_tensors(gguf, model)
    return model


def _check_supported(gguf: GgufFile, model: LlamaModel) -> None:
    """Refuses what would make the packed model compute something else than the file means."""
    meta = gguf.metadata
    if model.heads % model.kv_heads:
        raise GgufError(f"{model.heads} attention heads are not a multiple of {model.kv_heads} KV heads")
    values = meta.uint("llama.attention.value_length", model.head_dim)
    if values != model.head_dim:
        raise GgufError(f"llama.attention.value_length {values} differs from the key length {model.head_dim}")
    if model.rope_dim % 2 or model.rope_dim > model.head_dim:
        raise GgufError(
            f"llama.rope.dimension_count is {model.rope_dim}; wanted an even number up to {model.head_dim}"
        )
    if model.rope_base <= 0 or model.norm_eps <= 0:
        raise GgufError(f"rope base {model.rope_base} and norm epsilon {model.norm_eps} must be above 0")
    scaling = meta.text("llama.rope.scaling.type", "none")
    factor = meta.real("llama.rope.scaling.factor", meta.real("llama.rope.scale_linear", 1.0))
    if scaling != "none" and factor != 1.0:
        raise GgufError(f"llama.rope.scaling.type {scaling!r} with factor {factor} is not supported")
    experts = meta.uint("llama.expert_count", 0)
    if experts:
        raise GgufError(f"llama.expert_count is {experts}; mixture-of-experts llama models are not supported")


def _check_tensors(gguf: GgufFile, model: LlamaModel) -> None:
    rows = len(gguf.tensors)
    if model.layers * 9 > rows:  # before the wanted table is built: a hostile block_count costs nothing
        raise GgufError(f"llama.block_count is {model.layers:,}, but the file has only {rows:,} tensors")
    wanted = model.tensor_shapes()
    for name, shape in wanted.items():
        tensor = gguf.tensors.get(name)
        if tensor is None:
            raise GgufError(f"tensor {name!r} is missing; wanted shape {list(shape)}")
        if tensor.shape != shape:
            raise GgufError(f"tensor {name!r}: shape {list(shape)} wanted, {list(tensor.shape)} found")
        check_supported(tensor)
    extra = next((name for name in gguf.tensors if name not in wanted), None)
    if extra is not None:
        raise GgufError(f"tensor {extra!r} is not part of a llama model calrt can run")


def compute_class(gguf: GgufFile) -> str:
    """ "f32" when every tensor of the file is F32, else "bf16"."""
    return "f32" if all(t.type.name == "F32" for t in gguf.tensors.values()) else "bf16"


def stored_dtype(tensor: TensorInfo, compute: str) -> str:
    """The dtype a tensor has in a package: norms stay float32 in every compute class."""
    return "f32" if len(tensor.shape) == 1 else compute


@dataclass(frozen=True)
class Source:
    """The file a package was made from."""

    name: str
    nbytes: int
    sha256: str


def build_manifest(
    gguf: GgufFile,
    model: LlamaModel,
    vocabulary: Vocabulary,
    compute: str,
    source: Source,
    artifacts: Sequence[Json],
    rows: Sequence[Sequence[Any]],
) -> Json:
    """The manifest as a JSON object. `rows` are the weight rows in offset order."""
    other = {"f32": "bf16", "bf16": "f32"}[compute]
    dtypes = [compute, other]
    cells = cell_range(model.context)
    lanes = {"min": 1, "max": MAX_LANES, "step": 1}
    chunks = [chunk for chunk in CHUNKS if chunk <= model.context] or [model.context]
    return {
        "manifest": "manifest-1",
        "minor": 0,
        "requires": [],
        "model": model_section(model, vocabulary, shown_text(source.name.removesuffix(".gguf")) or "model"),
        "tokenizer": tokenizer_section(vocabulary),
        "target": {"driver": "cpu", "device_class": "cpu-ref"},
        "artifacts": sorted(artifacts, key=lambda a: str(a["id"])),
        "weights": weights_section(rows),
        "graphs": [decode_graph(compute, PROFILES), prefill_graph(compute, chunks)],
        "kv": {
            "dtype": dtypes,
            "layers": model.layers,
            "heads": model.kv_heads,
            "head_dim": model.head_dim,
            "groups": [kv_group(lanes, cells)],
            "caps": caps("lane_copy", "range_copy", "kv_read", "kv_write", "k_rotate"),
        },
        "allowed": {
            "lanes": lanes,
            "cells": cells,
            "profiles": list(PROFILES),
            "chunks": chunks,
            "compute": dtypes,
            "kv_dtype": dtypes,
            "logits_dtype": dtypes,
            "depth": [1, 2],
            "parallel": ["none"],
            "placement": ["any"],
        },
        "memory": {"plan": "dynamic", "regions": []},
        "parallelism": {"mode": "none", "chips": 1, "degree": 1},
        "versions": {
            "packer": {"exact": PACKER_VERSION},
            "driver_abi": {"min": [0, 1], "below": [2, 0]},
        },
        "golden": [],
        "provenance": {
            "kind": "converted",
            "created": None,
            "tool": f"calrt package build {PACKER_VERSION}",
            "sources": [
                {
                    "name": shown_text(source.name) or "model.gguf",
                    "bytes": source.nbytes,
                    "sha256": source.sha256,
                    "media_type": "application/vnd.gguf",
                }
            ],
            "license": _license(gguf.metadata.get("general.license")),
        },
        "claims": [],
        "signatures": {"expect": []},
    }


def model_section(model: LlamaModel, vocabulary: Vocabulary, name: str) -> Json:
    """What a manifest says about a llama model."""
    params: Json = {
        "ffn": model.ffn,
        "rope_dim": model.rope_dim,
        "rope_base": model.rope_base,
        "rope_style": "interleaved",
        "norm_eps": model.norm_eps,
        "tie_embeddings": model.tied,
        "experts": 0,
        "experts_used": 0,
    }
    if vocabulary.bos is not None:
        params["bos"] = vocabulary.bos
    if vocabulary.eog:
        params["eos"] = list(vocabulary.eog)
    return {
        "name": name,
        "arch": "llama",
        "vocab": model.vocab,
        "context": model.context,
        "layers": model.layers,
        "embed": model.embed,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "params": params,
    }


def tokenizer_section(vocabulary: Vocabulary) -> Json:
    """What a manifest says about a vocabulary in the artifacts "vocab" and, if it has one, "template"."""
    return {
        "kind": "gguf",
        "artifact": "vocab",
        "template": "template" if vocabulary.chat_template is not None else None,
        "vocab": len(vocabulary.tokens),
        "add_bos": vocabulary.add_bos and vocabulary.bos is not None,
    }


def weights_section(rows: Sequence[Sequence[Any]]) -> Json:
    """What a manifest says about the tensors in the artifact "weights": `rows` are in offset order."""
    return {
        "artifact": "weights",
        "align": WEIGHT_ALIGN,
        "columns": ["name", "dtype", "shape", "offset", "bytes"],
        "rows": [list(row) for row in rows],
    }


def kv_group(lanes: Json | Sequence[int], cells: Json | Sequence[int], split: str = "none") -> Json:
    """The one share group of a package: the lanes and cells that are allowed, and how chips split it."""
    return {
        "name": "main",
        "lanes": lanes,
        "cells": cells,
        "order": ["layer", "kv", "lane", "cell", "head", "dim"],
        "strides": None,
        "base": None,
        "split": split,
        "owner": "driver",
    }


def check_vocabulary(gguf: GgufFile, model: LlamaModel) -> Vocabulary:
    """The file's vocabulary; refused when it has more tokens than the model has logits."""
    vocabulary = read_vocabulary(gguf.metadata)
    if len(vocabulary.tokens) > model.vocab:
        raise GgufError(
            f"tokenizer.ggml.tokens has {len(vocabulary.tokens):,} tokens, "
            f"but token_embd.weight has only {model.vocab:,} rows"
        )
    return vocabulary


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's canonical text: equal objects give equal bytes."""
    return (json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def cell_range(context: int) -> dict[str, int]:
    """Lane sizes in cells up to the context, in steps of 64 or the largest power of two that divides it."""
    step = math.gcd(context, 64)
    return {"min": 64 if context >= 64 else step, "max": context, "step": step}


def shown_text(text: str) -> str:
    """`text` without control and direction-changing characters, at most 200 characters."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))[:200]


def _license(value: Any) -> str | None:
    if not isinstance(value, str) or not value.isascii() or not shown_text(value):
        return None
    return _SPDX.get(value.lower(), shown_text(value))


def caps(*names: str, value: bool = True) -> Json:
    """Capabilities that the packer says a package has, or lacks."""
    return {name: {"value": value, "level": "C2" if value else "C4", "source": "packer"} for name in names}


def _io(role: str, dtype: str, *shape: int | str, layout: Json = LINEAR) -> Json:
    return {"role": role, "dtype": dtype, "shape": list(shape), "layout": layout}


def decode_graph(logits: str, profiles: Sequence[int], lane_map: str = "any", layout: Json = LINEAR) -> Json:
    """Decode graphs for some batches. `logits`: their dtype, in `layout`."""
    inputs = [_io("tokens", "i32", "B"), _io("positions", "i32", "B")]
    if lane_map == "any":
        inputs.append(_io("lanes", "i32", "B"))
    return {
        "name": "decode",
        "kind": "decode",
        "batch": list(profiles),
        "chunk": None,
        "artifacts": [],
        "share_group": "main",
        "lane_map": lane_map,
        "inputs": inputs,
        "outputs": [_io("logits", logits, "B", "V", layout=layout)],
        "caps": caps("explicit_positions"),
    }


def prefill_graph(
    logits: str,
    chunks: Sequence[int],
    lane_map: str = "any",
    layout: Json = LINEAR,
    logit_rows: bool = True,
) -> Json:
    """Prefill graphs for some chunks; without `logit_rows` they return the last valid row alone."""
    inputs = [_io("tokens", "i32", "T"), _io("positions", "i32", "T")]
    if lane_map == "any":
        inputs.append(_io("lanes", "i32", 1))
    inputs.append(_io("n_valid", "i32", 1))
    if logit_rows:
        inputs.append(_io("logit_rows", "i32", "R"))
    return {
        "name": "prefill",
        "kind": "prefill",
        "batch": [1],
        "chunk": list(chunks),
        "artifacts": [],
        "share_group": "main",
        "lane_map": lane_map,
        "inputs": inputs,
        "outputs": [_io("logits", logits, "R" if logit_rows else 1, "V", layout=layout)],
        "caps": caps("explicit_positions", *["logit_rows"] * logit_rows),
    }
