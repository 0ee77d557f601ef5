# SPDX-License-Identifier: Apache-2.0
"""Two sound packages that tests may damage: a tiny llama for the cpu, and a stand-in for a vendor's files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calrt.package_build import build_package
from tiny_gguf import CHAT_TEMPLATE, make_llama

Json = dict[str, Any]


class Bench:
    """A package directory under work: `manifest` is a tree to change, `raw` replaces its text if set."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest: Json = json.loads((directory / "manifest.json").read_text())
        self.raw: bytes | None = None

    def save(self) -> None:
        data = self.raw if self.raw is not None else json.dumps(self.manifest, indent=1).encode()
        path = self.directory / "manifest.json"
        if path.is_file() and not path.is_symlink():
            path.write_bytes(data)

    def artifact(self, name: str) -> Json:
        return next(a for a in self.manifest["artifacts"] if a["id"] == name)

    def file(self, name: str) -> Path:
        return self.directory / self.artifact(name)["path"]

    def graph(self, name: str) -> Json:
        return next(g for g in self.manifest["graphs"] if g["name"] == name)

    def io(self, graph: str, role: str) -> Json:
        found = self.graph(graph)
        return next(io for io in found["inputs"] + found["outputs"] if io["role"] == role)

    def row(self, name: str) -> list[Any]:
        return next(row for row in self.manifest["weights"]["rows"] if row[0] == name)

    def pin(self, name: str) -> None:
        """Makes the manifest agree with the file again."""
        data = self.file(name).read_bytes()
        self.artifact(name).update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def add(self, name: str, path: str, role: str, data: bytes) -> None:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self.manifest["artifacts"].append(
            {"id": name, "path": path, "role": role, "media_type": "application/octet-stream"}
        )
        self.pin(name)

    def text(self, change: Callable[[str], str]) -> None:
        """Changes the manifest's text, for damages that a JSON writer cannot make; it must change."""
        before = self.manifest_text()
        after = change(before)
        assert after != before, "the damage did not change the manifest"
        self.raw = after.encode("utf-8", "surrogateescape")

    def manifest_text(self) -> str:
        return json.dumps(self.manifest, indent=1)

    def replace(self, pattern: str, to: str) -> None:
        self.text(lambda text: re.sub(pattern, lambda _: to, text, count=1))


def build_tiny(directory: Path, work: Path) -> Path:
    """A packed tiny llama with a chat template and one golden set."""
    source = make_llama(work / "tiny.gguf", chat_template=CHAT_TEMPLATE)
    bench = Bench(build_package(source, directory))
    rng = np.random.default_rng(5)
    tokens = rng.integers(0, 384, 16, dtype=np.int32)
    bench.add("g_in", "golden/tokens.i32", "golden.input", tokens.tobytes())
    logits = rng.standard_normal((16, 384)).astype(np.float32)
    bench.add("g_out", "golden/logits.f32", "golden.output", logits.tobytes())
    tolerance = {"max_abs": 0.001, "rel_rms": 0.0001, "argmax_agree": 1.0}
    bench.manifest["golden"].append(
        {
            "name": "random",
            "graph": "prefill_t16",
            "load": {"lanes": 1, "cells": 64, "compute": "f32"},
            "inputs": [{"role": "tokens", "artifact": "g_in", "dtype": "i32", "shape": [16]}],
            "outputs": [
                {
                    "role": "logits",
                    "artifact": "g_out",
                    "dtype": "f32",
                    "shape": [16, 384],
                    "tolerance": tolerance,
                }
            ],
        }
    )
    bench.save()
    return directory


def build_standin(directory: Path) -> Path:
    """A vendor's directory of the baseline's shape, with small files and invented facts."""
    directory.mkdir(parents=True)
    artifacts = []
    counts = {"graph": 2, "commands": 4, "io": 2, "address": 2, "kv": 2, "params": 4, "meta": 3}
    for role, count in counts.items():
        for number in range(count):
            name = f"{role}{number:02}"
            path = directory / "payload" / f"{role}-{number:02}.bin"
            path.parent.mkdir(exist_ok=True)
            data = hashlib.sha256(name.encode()).digest() * 64
            path.write_bytes(data)
            artifacts.append(
                {
                    "id": name,
                    "path": f"payload/{path.name}",
                    "role": f"calbin.{role}",
                    "media_type": "application/vnd.calculet.calbin",
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
            )
    unknown = {"value": None, "level": "C3", "source": "unknown"}

    def graph(kind: str, artifact: str) -> Json:
        def io(role: str, dtype: str, shape: list[Any], layout: Json) -> Json:
            return {"role": role, "dtype": dtype, "shape": shape, "layout": layout}

        tiled = {"kind": "tiled", "tile": {"axis": 1, "size": 16}, "order": ["o", 0, "i"], "padded": None}
        rows = "T" if kind == "prefill" else "B"
        return {
            "name": kind,
            "kind": kind,
            "batch": [1],
            "chunk": [128] if kind == "prefill" else None,
            "artifacts": [artifact],
            "share_group": "main",
            "lane_map": "none",
            "inputs": [io(role, "i32", [rows], {"kind": "linear"}) for role in ("tokens", "positions")],
            "outputs": [io("logits", "bf16", [1, "V"], tiled)],
            "caps": {"explicit_positions": unknown},
        }

    manifest = {
        "manifest": "manifest-1",
        "minor": 0,
        "requires": [],
        "model": {
            "name": "standin",
            "arch": "qwen3-moe",
            "vocab": 151936,
            "context": 40960,
            "layers": 48,
            "embed": None,
            "heads": None,
            "kv_heads": 4,
            "head_dim": 128,
            "params": {},
        },
        "tokenizer": {"artifact": None, "kind": None, "vocab": None, "template": None, "add_bos": None},
        "target": {"driver": "calrt076", "device_class": None},
        "artifacts": artifacts,
        "weights": None,
        "graphs": [graph("prefill", "graph00"), graph("decode", "graph01")],
        "kv": {
            "dtype": ["bf16"],
            "layers": 48,
            "heads": 4,
            "head_dim": 128,
            "groups": [
                {
                    "name": "main",
                    "lanes": [1],
                    "cells": [40960],
                    "order": ["layer", "kv", "lane", "cell", "head", "dim"],
                    "strides": [83886080, 41943040, 41943040, 1024, 256, 2],
                    "base": None,
                    "split": "none",
                    "owner": "graph",
                    "bytes": 4026531840,
                }
            ],
            "caps": {"lane_copy": unknown},
        },
        "allowed": {
            "lanes": [1],
            "cells": [40960],
            "profiles": [1],
            "chunks": [128],
            "compute": ["package"],
            "kv_dtype": ["bf16"],
            "logits_dtype": ["bf16"],
            "depth": [1],
            "parallel": ["tensor"],
            "placement": ["chips:0+1"],
        },
        "memory": {"plan": "static", "regions": None},
        "parallelism": {"mode": "tensor", "chips": 2, "degree": 2},
        "versions": {
            "runtime": {"exact": "0.7.6"},
            "compiler": None,
            "kernel_driver": None,
            "firmware": None,
            "driver_abi": {"min": [1, 0], "below": [2, 0]},
        },
        "golden": [],
        "provenance": {"kind": "standin", "created": None, "tool": "test", "sources": None, "license": None},
        "claims": [],
        "signatures": {"expect": []},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return directory


def copy_of(package: Path, target: Path) -> Bench:
    """A copy to damage."""
    shutil.copytree(package, target)
    return Bench(target)
