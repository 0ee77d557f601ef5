# SPDX-License-Identifier: Apache-2.0
"""`model.kv` on the presets of mock beside `tiny`: of a real model's size, with two chips, with no operation.

mock computes exactly, so whatever lies in a lane gives the tokens of a fresh prefill of the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import calrt
from calrt.kv import CancelToken, Run, Shift
from fresh_python import run

PROMPT = [(7 * i + 3) % 250 for i in range(40)]
COUNT = 10
LARGE = "qwen3-30b-a3b"
pytestmark = pytest.mark.skipif("mock" not in calrt.drivers(), reason="the driver mock is not built")


@pytest.fixture(params=[LARGE, "dual-chip", "dual-chip tensor"])
def model(request: pytest.FixtureRequest) -> Iterator[calrt.Model]:
    name, _, mode = request.param.partition(" ")
    with (
        calrt.open(f"mock:{name}", speed=0) as device,
        device.load(f"preset:{name}", parallel=mode or "auto") as loaded,
    ):
        yield loaded
        loaded.kv.check_integrity()
        assert loaded.kv.stats()["states"] == {"FREE": loaded.lanes}


def tokens_after(sequence: calrt.Sequence, token: int = 1) -> list[int]:
    """Greedy; the lane is as before then, as a cut tail is."""
    length, found = sequence.length, [token]
    for _ in range(COUNT):
        found.append(int(sequence.decode(found[-1]).to_f32().argmax()))
    sequence.truncate(length)
    return found[1:]


def fresh(model: calrt.Model, tokens: list[int]) -> tuple[bytes, list[int]]:
    """State and following tokens of a lane that was only prefilled."""
    with model.sequence(128) as sequence:
        sequence.prefill(tokens)
        return model.kv.state(sequence.lane), tokens_after(sequence)


# ---- what a lane gives ------------------------------------------------------------------------------


def test_a_generation_is_the_same_each_time_and_leaves_nothing(model: calrt.Model) -> None:
    first = list(model.generate(PROMPT, max_tokens=COUNT, temperature=0))
    for _ in range(2 * model.lanes):
        assert list(model.generate(PROMPT, max_tokens=COUNT, temperature=0)) == first
    with pytest.raises(calrt.InvalidArgumentError, match=rf"{model.cells + 1}.*{model.cells}"):
        model.kv.reserve(model.cells + 1)
    with model.kv.reserve(model.cells) as lane:
        assert (lane.reserved, lane.length) == (model.cells, 0)
        assert model.kv.free_lanes() == model.lanes - 1


def test_a_shifted_lane_is_a_fresh_one(model: calrt.Model) -> None:
    state, tokens = fresh(model, PROMPT[:4] + PROMPT[14:])
    with model.sequence(128) as sequence:
        sequence.prefill(PROMPT)
        assert model.kv.shift(sequence.lane, 4, 10) == Shift(4, 10)
        assert model.kv.state(sequence.lane) == state
        assert tokens_after(sequence) == tokens


def test_a_state_goes_on_where_it_was(model: calrt.Model, tmp_path: Path) -> None:
    state, tokens = fresh(model, PROMPT)
    with model.sequence(128) as sequence:
        sequence.prefill(PROMPT)
        model.kv.save(sequence.lane, tmp_path / "state", PROMPT)
        assert tokens_after(sequence) == tokens
    fresh(model, PROMPT[::-1])  # whatever is in the lane now
    with model.sequence(128) as sequence:
        sequence.prefill(PROMPT[::-1])
        info = model.kv.load(sequence.lane, tmp_path / "state")
        assert (info.cells, info.tokens) == (len(PROMPT), PROMPT)
        assert model.kv.state(sequence.lane) == state
        assert tokens_after(sequence) == tokens


@pytest.mark.parametrize("p1", [-1, 17])
def test_a_copy_gives_the_tokens_of_its_source(model: calrt.Model, p1: int) -> None:
    kept = PROMPT if p1 < 0 else PROMPT[:p1]
    state, tokens = fresh(model, kept)
    with model.sequence(128) as source:
        source.prefill(PROMPT)
        before = model.kv.state(source.lane)
        if model.lanes == 1:  # onto itself: what is behind p1 is gone
            model.kv.seq_cp(source.lane, source.lane, 0, p1)
            model.kv.seq_rm(source.lane, len(kept))
            assert model.kv.state(source.lane) == state
            assert tokens_after(source) == tokens
            return
        with calrt.Sequence(model, model.kv.reserve(128)) as target:
            target.prefill(PROMPT[::-1])
            model.kv.seq_cp(source.lane, target.lane, 0, p1)
            assert model.kv.state(target.lane) == state
            assert tokens_after(target) == tokens
            assert model.kv.state(source.lane) == before


def test_a_generation_without_a_limit_ends_with_its_lane(caplog: pytest.LogCaptureFixture) -> None:
    """B015, B026: nothing is shifted for ever and nothing logged, also where nothing could be shifted."""
    for name in ("bare", "dual-chip"):
        with calrt.open(f"mock:{name}", speed=0) as device, device.load(f"preset:{name}", cells=64) as model:
            with caplog.at_level("INFO", logger="calrt"):
                caplog.clear()
                found = list(model.generate(PROMPT, max_tokens=2**31 - 1, temperature=0, stop_tokens=[]))
            assert len(found) == 64 - len(PROMPT) + 1  # the last one is not read
            assert not caplog.records
            assert model.kv.stats()["states"] == {"FREE": model.lanes}


def test_what_is_cancelled_before_it_has_a_cell_leaves_nothing(model: calrt.Model) -> None:
    """B029: before a wait, before the first step of an await, before the first token, in the same moment."""
    kv, cancel = model.kv, CancelToken()
    cancel.cancel()
    with pytest.raises(calrt.CancelledJobError):
        kv.reserve(8, cancel=cancel)

    async def given_up() -> None:
        wait = asyncio.ensure_future(kv.areserve(8))
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    asyncio.run(given_up())
    model.generate(PROMPT, max_tokens=COUNT, stream=True).close()
    assert kv.free_lanes() == model.lanes
    with model.sequence(128) as sequence:
        graph = next(graph for graph in model.graphs.values() if graph.kind == "prefill")
        job = graph.submit(tokens=PROMPT[:4], positions=[0, 1, 2, 3], lanes=[sequence.lane])
        job.cancel()
        with suppress(calrt.CancelledJobError):  # or it was done already
            job.wait()
        kv.clear(sequence.lane)
        sequence.prefill(PROMPT)
        found = tokens_after(sequence)
    assert found == fresh(model, PROMPT)[1]
    assert kv.stats()["waiting"] == 0


def test_several_answers_given_up_at_once_leave_no_lane_behind(model: calrt.Model) -> None:
    """B030."""
    want = list(model.generate(PROMPT, max_tokens=COUNT, temperature=0))
    streams = [
        model.generate(PROMPT, max_tokens=COUNT, temperature=0, stream=True)
        for _ in range(min(3, model.lanes))
    ]
    assert [next(stream) for stream in streams] == want[:1] * len(streams)
    assert model.kv.free_lanes() == model.lanes - len(streams)
    for stream in streams:
        stream.close()
    assert model.kv.free_lanes() == model.lanes
    assert list(model.generate(PROMPT, max_tokens=COUNT, temperature=0)) == want


# ---- the size of a real model -----------------------------------------------------------------------

# Anonymous memory, a cell, of a model whose lane is filled, shifted, saved and filled again. The buffers of
# logits are of the vocabulary and not of cells: a first round has made them, but for one that comes late now
# and then, so the least of five models is taken. What a cell costs, all of them pay.
MEMORY = """
import gc
import calrt
def size():
    gc.collect()
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
piece, held, sizes, blob = [i % 250 for i in range(1000)], [], [], bytearray(1 << 20)
for n in range(5):
    start = size()
    device = calrt.open("mock:qwen3-30b-a3b", speed=0)
    model = device.load("preset:qwen3-30b-a3b")
    loaded = size()
    sequence = model.sequence()
    for measured in range(3):
        if measured == 1:
            begun = size()
        for _ in range(40):
            sequence.prefill(piece)
        model.kv.shift(sequence.lane, 100, 1000)
        assert sequence.length == 39_000
        if measured:
            model.kv.state(sequence.lane, out=blob)
        model.kv.clear(sequence.lane)
    held.append((device, model, sequence))
    sizes.append(loaded - start + size() - begun)
print(min(sizes) / model.cells)
"""


def test_a_cell_costs_20_bytes_at_most() -> None:
    assert 8 < float(run(MEMORY).stdout) <= 20


def test_a_full_lane_of_40960_cells_ends_with_the_numbers() -> None:
    with calrt.open(f"mock:{LARGE}", speed=0) as device, device.load(f"preset:{LARGE}") as model:
        assert (model.lanes, model.cells) == (1, 40_960)
        with model.sequence() as sequence:
            sequence.prefill([i % 250 for i in range(40_960)])
            before = model.kv.state(sequence.lane)
            with pytest.raises(calrt.InvalidArgumentError, match="40960"):
                sequence.decode(1)
            assert model.kv.state(sequence.lane) == before
            assert model.kv.shift(sequence.lane, 960) == Shift(960, 20_000)
            sequence.decode(1)
            assert sequence.length == 20_961


# ---- a device with no KV operation ------------------------------------------------------------------


def test_bare_says_what_it_lacks_and_changes_nothing(tmp_path: Path) -> None:
    with calrt.open("mock", speed=0) as device, device.load("preset:tiny") as whole:
        state, _ = fresh(whole, PROMPT)
    (tmp_path / "state").write_bytes(state)
    with calrt.open("mock:bare", speed=0) as device, device.load("preset:bare") as model:
        kv, sequence = model.kv, model.sequence(128)
        sequence.prefill(PROMPT)
        lane, tokens = sequence.lane, tokens_after(sequence)
        cells = "range_copy, or read and write"
        refused: list[tuple[Callable[[], object], str, str]] = [
            (lambda: kv.seq_rm(lane, 3, 5), "seq_rm_middle", cells),
            (lambda: kv.seq_add(lane, 5, -1, -2), "seq_add", cells),
            (lambda: kv.seq_div(lane, 0, 4, 2**20), "seq_div", cells),
            (lambda: kv.shift(lane, 4), "seq_shift", cells),
            (lambda: kv.reuse_chunks(lane, PROMPT, PROMPT[5:], 4), "reuse_chunks", cells),
            (lambda: kv.seq_cp(lane, lane), "seq_cp_full", f"lane_copy, {cells}"),
            (lambda: kv.seq_cp(lane, lane, 0, 7), "seq_cp_prefix", f"lane_copy, {cells}"),
            (lambda: kv.seq_cp(lane, lane, 3, 7), "seq_cp_range", cells),
            (lambda: kv.save(lane, tmp_path / "new"), "save", "kv_read"),
            (lambda: kv.state(lane), "save", "kv_read"),
            (lambda: kv.state(lane, out=bytearray(1 << 16)), "save", "kv_read"),
            (lambda: kv.load(lane, tmp_path / "state"), "load", "kv_write"),
            (lambda: kv.restore(lane, state), "load", "kv_write"),
        ]
        for call, operation, capability in refused:
            with pytest.raises(calrt.UnsupportedError) as caught:
                call()
            assert caught.value.message.startswith(f"{operation}: ")
            assert capability in caught.value.message
            assert kv.runs(lane) == [Run(0, 40, 0, 0, False)]
        assert [file.name for file in tmp_path.iterdir()] == ["state"]
        assert tokens_after(sequence) == tokens
        named = {operation for _, operation, _ in refused} | {"seq_save", "seq_load"}
        assert {op for op, support in kv.caps().items() if support.how != "native"} <= named
        # What needs no cell moved works: the tail, and a prefix in the lane where it lies.
        kv.seq_rm(lane, 30)
        with pytest.raises(calrt.UnsupportedError, match=r"host_bytes=1024: .*kv_read.*kv_write.*at 0"):
            kv.enable_prefixes(16, host_bytes=1024)
        kv.enable_prefixes(8)
        kv.park(lane, PROMPT[:30])
        with kv.try_reserve(128, prompt=PROMPT) as found:
            assert found.length == 30
            again = calrt.Sequence(model, found)
            again.prefill(PROMPT[30:])
            assert tokens_after(again) == tokens
        kv.check_integrity()
