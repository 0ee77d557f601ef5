# SPDX-License-Identifier: Apache-2.0
"""Packages that are made, not downloaded: stand-ins of a few kB for trying a device, or calrt without one.

    with calrt.open("mock:bare") as device, device.load("preset:bare") as model: ...

A preset is one name for a pair: a configuration of the mock device and the package that it runs. The words
of its vocabulary are made up. With `weights` a package also has a llama of two layers with random weights,
so that a device that computes runs it too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calrt._enums import Status
from calrt.errors import PackageError, UnsupportedError
from calrt.model_cache import cached_package
from calrt.package_build import HashingWriter, new_directory, write_file, write_template
from calrt.package_manifest import (
    LINEAR,
    PACKER_VERSION,
    WEIGHT_ALIGN,
    Json,
    LlamaModel,
    caps,
    decode_graph,
    kv_group,
    manifest_bytes,
    model_section,
    prefill_graph,
    tokenizer_section,
    weights_section,
)
from calrt.preset_vocabulary import CHAT_TEMPLATE, made_up_vocabulary, vocabulary_gguf
from calrt.vocabulary import Vocabulary

__all__ = [
    "PRESETS",
    "Preset",
    "build_package",
    "build_preset",
    "preset_defaults",
    "preset_for",
    "preset_name",
]

PRESET_VERSION = 2  # part of every cache key: raise it whenever a preset's package changes
_PREFIX = "preset:"
_SEED = 1  # of the weights
_KV_OPS = ("lane_copy", "range_copy", "kv_read", "kv_write", "k_rotate")
_ONE_CHIP: dict[str, Sequence[str]] = {"none": ("any", "chip:0")}
_MOCK_SHAPE = {"layers": 1, "embed": 2, "heads": 1, "kv_heads": 1, "head_dim": 2}  # a cell of 8 bytes
_WITHOUT_WEIGHTS = ("mock", "null")  # drivers that need none
_CLASSES = {"cpu": "cpu-ref", "null": "null"}  # of calrt's drivers of one chip
_ADAPTER_CLASSES = {"calrt076": "vdev-2chip"}


@dataclass(frozen=True)
class Preset:
    """What a preset's package allows. `cells` are token positions per lane."""

    about: str
    vocab: int
    lanes: Json | list[int]
    cells: Json | list[int]
    profiles: Sequence[int]
    chunks: Sequence[int]
    lane_map: str
    """Of decode; prefill needs to be told its lane wherever there are several."""
    dtypes: Sequence[str]
    """Of logits, and what may be computed in; the first is the default."""
    kv_ops: Sequence[str]
    arch: str = "mock"
    shape: Json = field(default_factory=lambda: dict(_MOCK_SHAPE))
    """layers, embed, heads, kv_heads, head_dim of what the package stands for, if it has no weights."""
    last_row_only: bool = False
    """Prefill gives the logits of its last valid row, and is not asked for others."""
    tile: int = 0
    """Columns of the logits in a tile, the innermost axis; 0 = rows one after the other."""
    padded_rows: int = 0
    """Rows that logits have room for; 0 = as many as there are."""
    chips: int = 1
    placements: dict[str, Sequence[str]] | None = None
    """Parallel mode -> where a package of that mode may be loaded; the first of each is the default."""
    defaults: tuple[int | None, int | None] = (None, None)
    """Lanes and cells of a load that names none; None is the package's default."""

    @property
    def modes(self) -> dict[str, Sequence[str]]:
        """Parallel modes, the default first, each with its placements."""
        return _ONE_CHIP if self.placements is None else self.placements


PRESETS = {
    "tiny": Preset(
        about="lanes in any order, batches up to 16, every KV operation",
        vocab=512,
        lanes={"min": 1, "max": 16, "step": 1},
        cells={"min": 64, "max": 4096, "step": 64},
        profiles=(1, 4, 8, 16),
        chunks=(16, 64),
        lane_map="any",
        dtypes=("f32", "bf16"),
        kv_ops=_KV_OPS,
        defaults=(4, 512),
    ),
    "bare": Preset(
        about="what is known of the hardware and no more: one lane, tiled logits, no KV operation, no cancel",
        vocab=512,
        lanes=[1],
        cells={"min": 64, "max": 4096, "step": 64},
        profiles=(1,),
        chunks=(64,),
        lane_map="none",
        dtypes=("bf16",),
        kv_ops=(),
        tile=16,
        defaults=(None, 512),
    ),
    "qwen3-30b-a3b": Preset(
        about="the size of Qwen3-30B-A3B on two chips: 151,936 tokens, one lane of 40,960 cells",
        vocab=151_936,
        lanes=[1],
        cells=[40_960],
        profiles=(1,),
        chunks=(64, 256),
        lane_map="none",
        dtypes=("bf16",),
        kv_ops=_KV_OPS,
        arch="qwen3-moe",
        shape={"layers": 48, "embed": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128},
        tile=16,
        chips=2,
        placements={"tensor": ("any", "chips:0+1")},
    ),
    "dual-chip": Preset(
        about="two chips, used one by one (parallel=none) or as one (tensor); row i of a batch is lane i",
        vocab=512,
        lanes=[4],
        cells={"min": 64, "max": 4096, "step": 64},
        profiles=(1, 4),
        chunks=(16, 64),
        lane_map="identity",
        dtypes=("bf16", "f32"),
        kv_ops=_KV_OPS,
        chips=2,
        placements={"none": ("chip:0", "chip:1"), "tensor": ("chips:0+1",)},
        defaults=(None, 512),
    ),
}


def preset_name(model: object) -> str | None:
    """NAME of "preset:NAME"; None for anything else that could be loaded."""
    return model.removeprefix(_PREFIX) if isinstance(model, str) and model.startswith(_PREFIX) else None


def preset_defaults(model: str) -> tuple[int | None, int | None]:
    """Lanes and cells for a load of "preset:NAME" that names none; None leaves it to the package."""
    preset = PRESETS.get(model.removeprefix(_PREFIX))
    return (None, None) if preset is None else preset.defaults


def preset_for(
    name: str, driver: str, device_class: str, parallel: str = "auto", placement: str = "auto"
) -> Path:
    """The package of a preset for a driver and device class, in the user's cache, built at its first use.

    `parallel` "auto" is the first mode that has `placement`. Raises `PackageError` on a mock device of
    another name, `UnsupportedError` for a driver that cannot run a stand-in, and what `build_preset` raises.
    """
    _known(name)
    if driver == "mock" and device_class != f"mock-{name}":
        mock = device_class.removeprefix("mock-")
        raise PackageError(
            f"preset:{name} is made for the device mock:{name}, this one is mock:{mock}: "
            f"load preset:{mock}, or open mock:{name}",
            Status.VERSION_MISMATCH,
        )
    if driver not in ("mock", *_CLASSES, *_ADAPTER_CLASSES):
        raise UnsupportedError(
            f"preset:{name} is a stand-in for the drivers mock, null, cpu and calrt076, this device has "
            f"driver {driver}: load a package that is made for it"
        )
    modes = _modes(_known(name), driver)
    if parallel == "auto":
        parallel = next((mode for mode, places in modes.items() if placement in places), "auto")
    return build_preset(name, driver=driver, device_class=device_class, parallel=parallel)


def build_preset(
    name: str,
    *,
    driver: str = "mock",
    device_class: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    weights: bool | None = None,
    parallel: str = "auto",
) -> Path:
    """The package directory of a preset: in the user's cache, built at its first use, or the new `folder`.

    `driver`, `device_class`: what the package is made for; the class is by default what the drivers of calrt
    say, and unknown for others. `weights`: random ones, always the same; by default for every driver but mock
    and null. `parallel`: one of the preset's modes, "auto" is its first. For the drivers cpu and null the
    package is of one chip; for cpu, which computes, it keeps the preset's sizes and no more: logits are
    linear, lanes in any order. For calrt076 it has what the SDK's files can have: a batch of 1, tiled BF16
    logits of the last row, no KV operation.

    Raises `ValueError` for an unknown name or mode, or cpu without weights; `FileExistsError` when `folder`
    exists; `TimeoutError` when another process builds the same for too long; `OSError`.
    """
    preset = _on_adapter(_known(name)) if driver in _ADAPTER_CLASSES else _known(name)
    modes = _modes(preset, driver)
    mode = next(iter(modes)) if parallel == "auto" else parallel
    if mode not in modes:
        raise ValueError(f"parallel={parallel!r}: preset:{name} has {', '.join(modes)} for {driver}")
    if weights is None:
        weights = driver not in _WITHOUT_WEIGHTS
    if driver == "cpu" and not weights:
        raise ValueError(f"preset:{name} for cpu needs weights, as cpu computes")
    target = {"driver": driver, "device_class": device_class or _device_class(name, driver)}
    recipe = _Recipe(name, preset, target, mode, weights)
    if folder is not None:
        made = Path(folder)
        if made.exists():
            raise FileExistsError(f"{made} exists; remove it or choose another directory")
        recipe.build(made)
        return made
    what = (
        f"preset {PRESET_VERSION} {PACKER_VERSION} {name} {mode} {weights} {driver} {target['device_class']}"
    )
    return cached_package(what, _PREFIX + name, recipe.build)


def build_package(
    preset: Preset, name: str, *, driver: str, device_class: str, folder: str | os.PathLike[str]
) -> Path:
    """A package of a preset of one's own, without weights, in the new directory `folder`."""
    recipe = _Recipe(
        name, preset, {"driver": driver, "device_class": device_class}, next(iter(preset.modes)), False
    )
    recipe.build(Path(folder))
    return Path(folder)


def _known(name: str) -> Preset:
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: {', '.join(PRESETS)}")
    return PRESETS[name]


def _modes(preset: Preset, driver: str) -> dict[str, Sequence[str]]:
    return _ONE_CHIP if driver in _CLASSES else preset.modes


def _device_class(name: str, driver: str) -> str | None:
    return f"mock-{name}" if driver == "mock" else (_CLASSES | _ADAPTER_CLASSES).get(driver)


def _on_adapter(preset: Preset) -> Preset:
    """The preset as files of CalRT 0.7.6 could have it."""
    return replace(preset, profiles=(1,), dtypes=("bf16",), kv_ops=(), tile=16, last_row_only=True)


@dataclass(frozen=True)
class _Recipe:
    """One package to build."""

    name: str
    preset: Preset
    target: Json
    mode: str
    weights: bool

    @property
    def on_cpu(self) -> bool:
        return bool(self.target["driver"] == "cpu")

    def build(self, target: Path) -> None:
        """Writes the package into the new directory `target`, which appears complete or not at all."""
        vocabulary = made_up_vocabulary(self.preset.vocab)
        with new_directory(target) as work:
            file = write_file(work / "vocab.gguf", lambda out: out.write(vocabulary_gguf(vocabulary)))
            artifacts = [
                write_template(work / "chat_template.jinja", CHAT_TEMPLATE),
                file.artifact("vocab", work / "vocab.gguf", "tokenizer.vocab", "application/vnd.gguf"),
            ]
            rows: list[list[Any]] = []
            if self.weights:
                path = work / "weights.bin"
                file = write_file(path, lambda out: rows.extend(_write_weights(out, self._llama())))
                artifacts.append(file.artifact("weights", path, "weights", "application/vnd.calrt.tensors"))
            data = manifest_bytes(self._manifest(vocabulary, artifacts, rows))
            write_file(work / "manifest.json", lambda out: out.write(data))

    def _llama(self) -> LlamaModel:
        """Small enough to build in no time with 151,936 tokens."""
        return LlamaModel(
            vocab=self.preset.vocab,
            context=_most(self.preset.cells),
            layers=2,
            embed=32,
            heads=4,
            kv_heads=2,
            head_dim=8,
            ffn=64,
            rope_dim=8,
            rope_base=10_000.0,
            norm_eps=1e-5,
            tied=False,
        )

    def _model(self, vocabulary: Vocabulary) -> Json:
        if self.weights:
            return model_section(self._llama(), vocabulary, _PREFIX + self.name)
        return {
            "name": _PREFIX + self.name,
            "arch": self.preset.arch,
            "vocab": self.preset.vocab,
            "context": _most(self.preset.cells),
            **self.preset.shape,
            "params": {"bos": vocabulary.bos, "eos": list(vocabulary.eog)},
        }

    def _graphs(self, logits: str) -> list[Json]:
        preset = self.preset
        if self.on_cpu:
            return [decode_graph(logits, preset.profiles), prefill_graph(logits, preset.chunks)]
        layout = LINEAR
        if preset.tile:
            tile = {"axis": 1, "size": preset.tile}
            padded = [preset.padded_rows, "V"] if preset.padded_rows else None
            layout = {"kind": "tiled", "tile": tile, "order": ["o", 0, "i"], "padded": padded}
        lane_map = preset.lane_map
        prefill = "any" if lane_map == "identity" else lane_map
        rows = lane_map != "none" and not preset.last_row_only
        return [
            decode_graph(logits, preset.profiles, lane_map, layout),
            prefill_graph(logits, preset.chunks, prefill, layout, logit_rows=rows),
        ]

    def _manifest(self, vocabulary: Vocabulary, artifacts: list[Json], rows: list[list[Any]]) -> Json:
        preset, model = self.preset, self._model(vocabulary)
        dtypes = ["f32", "bf16"] if self.on_cpu else list(preset.dtypes)
        kv_dtypes = dtypes if self.weights else ["bf16"]
        driver = self.target["driver"]
        placements = _modes(preset, driver)[self.mode]
        chips = 1 if driver in _CLASSES else preset.chips
        split = "heads" if self.mode == "tensor" else "none"
        can = preset.kv_ops
        return {
            "manifest": "manifest-1",
            "minor": 0,
            "requires": [],
            "model": model,
            "tokenizer": tokenizer_section(vocabulary),
            "target": self.target,
            "artifacts": artifacts,
            "weights": weights_section(rows) if self.weights else None,
            "graphs": self._graphs(dtypes[0]),
            "kv": {
                "dtype": kv_dtypes,
                "layers": model["layers"],
                "heads": model["kv_heads"],
                "head_dim": model["head_dim"],
                "groups": [kv_group(preset.lanes, preset.cells, split)],
                "caps": caps(*can) | caps(*(op for op in _KV_OPS if op not in can), value=False),
            },
            "allowed": {
                "lanes": preset.lanes,
                "cells": preset.cells,
                "profiles": list(preset.profiles),
                "chunks": list(preset.chunks),
                "compute": dtypes,
                "kv_dtype": kv_dtypes,
                "logits_dtype": dtypes,
                "depth": [1],
                "parallel": [self.mode],
                "placement": list(placements),
            },
            "memory": {"plan": "dynamic", "regions": []},
            "parallelism": {
                "mode": self.mode,
                "chips": chips,
                "degree": chips if self.mode == "tensor" else 1,
            },
            "versions": {
                "packer": {"exact": PACKER_VERSION},
                "driver_abi": {"min": [0, 1], "below": [2, 0]},
            },
            "golden": [],
            "provenance": {
                "kind": "standin",
                "created": None,
                "tool": f"calrt preset {PRESET_VERSION}",
                "sources": [],
                "license": "Apache-2.0",
            },
            "claims": [],
            "signatures": {"expect": []},
        }


def _most(allowed: Json | list[int]) -> int:
    return int(allowed["max"] if isinstance(allowed, dict) else max(allowed))


def _write_weights(out: HashingWriter, model: LlamaModel) -> list[list[Any]]:
    """Random float32 weights, the same every time, whose logits are well spread; their rows."""
    random = np.random.default_rng(_SEED)
    rows: list[list[Any]] = []
    for name, shape in model.tensor_shapes().items():
        out.write(bytes(-out.nbytes % WEIGHT_ALIGN))
        values = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            values = np.float32(1) + values / np.float32(10)
        else:
            gain = 4 if name in ("token_embd.weight", "output.weight") else 2
            values *= np.float32(gain / math.sqrt(shape[1]))
        if name == "output.weight":
            values[:256] /= 8  # single bytes are unlikely, so that the text reads like words
        start = out.nbytes
        out.write(values.astype("<f4", copy=False))
        rows.append([name, "f32", list(shape), start, out.nbytes - start])
    return rows
