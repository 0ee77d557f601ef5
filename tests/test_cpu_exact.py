# SPDX-License-Identifier: Apache-2.0
"""The cpu device gives the same bits whatever a token travels with: batch, chunk, neighbours, threads."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calrt
from calrt._core import ENDED, TOKEN, StepRunner
from calrt.package_build import build_package
from shared_files import stories

MODELS = ["tiny-f32", "tiny-bf16", "stories"]
STEPS = 24


@pytest.fixture(scope="module", params=MODELS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    source = stories() if name == "stories" else request.getfixturevalue("tiny_gguf")
    compute = "bf16" if name == "tiny-bf16" else "f32"
    return build_package(source, tmp_path_factory.mktemp("exact") / name, compute=compute)


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def loaded(request: pytest.FixtureRequest, package: Path) -> Iterator[calrt.Model]:
    with (
        calrt.open("cpu", threads=request.param) as device,
        device.load(package, lanes=16, cells=128) as model,
    ):
        yield model


def prompts(model: calrt.Model, count: int) -> list[list[int]]:
    """Different lengths and tokens, so that rows of one batch stand at different positions."""
    rng = np.random.default_rng(3)
    return [[1, *map(int, rng.integers(3, model.vocab, 3 + 4 * i))] for i in range(count)]


def alone(model: calrt.Model, prompt: list[int], steps: int = STEPS) -> tuple[list[int], np.ndarray]:
    """Greedy tokens and all logits [steps, V], one token per job."""
    rows, tokens = [], []
    with model.sequence(len(prompt) + steps) as sequence:
        for token in prompt:
            logits = sequence.decode(token)
        for _ in range(steps):
            rows.append(logits.to_f32())
            tokens.append(int(rows[-1].argmax()))
            logits = sequence.decode(tokens[-1])
    return tokens, np.stack(rows)


@pytest.mark.parametrize("batch", [4, 8, 16])
def test_a_batch_changes_no_bit(loaded: calrt.Model, batch: int) -> None:
    graph = loaded.graphs[f"decode_b{batch}"]
    texts = prompts(loaded, min(batch, 8))
    lanes = [loaded.kv.reserve(128) for _ in texts]
    prefilled = [prefill(loaded, lane, text) for lane, text in zip(lanes, texts, strict=True)]
    produced: list[list[np.ndarray]] = [[] for _ in texts]
    current = np.stack(prefilled)
    for _ in range(STEPS):
        for rows, row in zip(produced, current, strict=True):
            rows.append(row)
        tokens = [int(row.argmax()) for row in current]
        positions = [lane.length for lane in lanes]
        job = graph.submit(tokens=tokens, positions=positions, lanes=lanes).wait()
        current = job.outputs["logits"].to_f32()
    for lane in lanes:
        lane.release()
    for text, rows in zip(texts, produced, strict=True):
        assert np.array_equal(np.stack(rows), alone(loaded, text)[1])


def prefill(model: calrt.Model, lane: calrt.kv.Lane, tokens: list[int]) -> np.ndarray:
    """Logits after the last of `tokens`, in the smallest chunks."""
    graph = min((g for g in model.graphs.values() if g.kind == "prefill"), key=lambda g: g.chunk)
    for at in range(0, len(tokens), graph.chunk):
        piece = tokens[at : at + graph.chunk]
        job = graph.submit(tokens=piece, positions=range(at, at + len(piece)), lanes=[lane]).wait()
    return job.outputs["logits"].row(0).to_f32()


def test_prefill_equals_decode_row_by_row_in_every_chunk(loaded: calrt.Model) -> None:
    tokens = [1, *map(int, np.random.default_rng(8).integers(3, loaded.vocab, 63))]
    with loaded.sequence(64) as sequence:
        wanted = np.stack([sequence.decode(token).to_f32() for token in tokens])
    for graph in loaded.graphs.values():
        if graph.kind != "prefill":
            continue
        found: list[np.ndarray] = []
        with loaded.kv.reserve(64) as lane:
            at = 0
            while at < len(tokens):
                piece = tokens[at : at + min(graph.chunk, 13 if at == 0 else graph.chunk)]  # a ragged start
                job = graph.submit(
                    tokens=piece,
                    positions=range(at, at + len(piece)),
                    lanes=[lane],
                    logit_rows=range(len(piece)),
                ).wait()
                found.extend(job.outputs["logits"].to_f32())
                at += len(piece)
        assert np.array_equal(np.stack(found), wanted), graph.name


def test_threads_change_no_bit(package: Path) -> None:
    answers = []
    for threads in (1, 2):
        with calrt.open("cpu", threads=threads) as device, device.load(package, lanes=1, cells=128) as model:
            answers.append(alone(model, prompts(model, 4)[3])[1])
    assert np.array_equal(*answers)


def run_requests(model: calrt.Model, texts: list[list[int]], **options: int) -> list[list[int]]:
    """Greedy tokens of each text through one StepRunner, all at once."""
    runner = StepRunner(model.native, **options)
    tokens: list[list[int]] = [[] for _ in texts]
    try:
        for request, text in enumerate(texts):
            runner.start(
                request,
                model.kv.try_reserve(len(text) + STEPS),
                text,
                max_tokens=STEPS,
                sampling={"temperature": 0.0},
            )
        ended = 0
        deadline = time.monotonic() + 60
        while ended < len(texts) and time.monotonic() < deadline:
            select.select([runner], [], [], 1.0)
            for kind, request, value, _, detail in runner.drain():
                if kind == TOKEN:
                    tokens[request].append(value)
                elif kind == ENDED:
                    assert value == 2, detail  # the budget
                    ended += 1
        assert ended == len(texts)
    finally:
        runner.close()
    assert model.kv.free_lanes() == model.lanes
    return tokens


def test_eight_requests_at_once_give_what_each_gives_alone(loaded: calrt.Model) -> None:
    texts = prompts(loaded, 8)
    together = run_requests(loaded, texts)
    assert together == [run_requests(loaded, [text])[0] for text in texts]
    assert together == [alone(loaded, text)[0] for text in texts]


def test_small_chunks_give_the_same(loaded: calrt.Model) -> None:
    texts = prompts(loaded, 8)
    smallest = min(g.chunk for g in loaded.graphs.values() if g.kind == "prefill")
    assert run_requests(loaded, texts, prefill_chunk=smallest) == run_requests(loaded, texts)
