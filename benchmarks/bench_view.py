# SPDX-License-Identifier: Apache-2.0
"""What a view of a job's logits costs: 151,936 BF16 values, no copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import calrt
from calrt import _core

if TYPE_CHECKING:
    from conftest import Perf

VOCAB = 151_936
CALLS = 200  # so few that some rounds fall between the machine's other work
LIMIT_US = 0.5


@pytest.fixture(scope="module")
def wide_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with Qwen's vocabulary, packed for the null device."""
    from calrt.package_build import build_package
    from tiny_gguf import make_llama

    source = make_llama(tmp_path_factory.mktemp("gguf") / "wide.gguf", vocab=VOCAB, context=64)
    package = build_package(source, tmp_path_factory.mktemp("package") / "wide")
    manifest = json.loads((package / "manifest.json").read_text())
    manifest["target"] = {"driver": "null", "device_class": "null"}
    (package / "manifest.json").write_text(json.dumps(manifest))
    return package


@pytest.fixture(scope="module")
def job(wide_package: Path) -> Iterator[calrt.Job]:
    with (
        calrt.open("null") as device,
        device.load(wide_package, lanes=1, cells=64, logits_dtype="bf16") as model,
        model.kv.reserve(4) as lane,
    ):
        yield model.graphs["decode_b1"].submit(tokens=[1], positions=[0], lanes=[lane]).wait()


def repeated(call: Callable[[], Any]) -> Callable[[], None]:
    def many() -> None:
        for _ in range(CALLS):
            call()

    return many


def test_view_of_logits(perf: Perf, job: calrt.Job) -> None:
    tensor = job.outputs["logits"]
    assert (tensor.dtype, tensor.shape) == ("bf16", (1, VOCAB))
    assert tensor.numpy().ctypes.data == np.frombuffer(memoryview(tensor).cast("B"), np.uint8).ctypes.data
    before = _core.copied_bytes()
    loop, held, whole, viewed = perf.best(
        repeated(lambda: tensor),  # what the loop and a call cost
        repeated(lambda: tensor.numpy()),
        repeated(lambda: job.outputs["logits"].numpy()),
        repeated(lambda: memoryview(tensor)),
        rounds=400,
    )
    assert _core.copied_bytes() == before
    for name, seconds in (("tensor", held), ("outputs", whole), ("memoryview", viewed)):
        perf.record(f"view.{name}", (seconds - loop) / CALLS * 1e6, "us", limit=LIMIT_US, n=VOCAB)
