# SPDX-License-Identifier: Apache-2.0
"""`model.kv` on devices: an operation leaves what llama.cpp's would, or it is refused as caps() says."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import calrt
from calrt.kv import Chunk, Kv, Lane, OpSupport, Run, Shift

PROMPT = [(7 * i + 3) % 256 for i in range(40)]
WORLDS = {"tiny": ("mock", "preset:tiny"), "bare": ("mock:bare", "preset:bare"), "cpu": ("cpu", "")}
OPS = ("rm_tail", "rm_middle", "cp_full", "cp_prefix", "cp_range", "keep", "add", "div", "shift", "clear",
       "save", "load")  # fmt: skip


@pytest.fixture(params=WORLDS)
def any_model(request: pytest.FixtureRequest, tiny_package: Path) -> Iterator[calrt.Model]:
    spec, package = WORLDS[request.param]
    with calrt.open(spec) as device, device.load(package or tiny_package) as model:
        yield model
        model.kv.check_integrity()


@pytest.fixture(params=["tiny", "cpu"])
def whole_model(request: pytest.FixtureRequest, tiny_package: Path) -> Iterator[calrt.Model]:
    """One that can do every operation."""
    spec, package = WORLDS[request.param]
    with calrt.open(spec) as device, device.load(package or tiny_package, lanes=4) as model:
        yield model
        model.kv.check_integrity()


@pytest.fixture
def mock_model() -> Iterator[calrt.Model]:
    with calrt.open("mock") as device, device.load("preset:tiny", lanes=4) as model:
        yield model


def logits(sequence: calrt.Sequence, token: int) -> npt.NDArray[np.float32]:
    return sequence.decode(token).to_f32()


def filled(model: calrt.Model, tokens: list[int]) -> calrt.Sequence:
    sequence = model.sequence(64)
    sequence.prefill(tokens)
    return sequence


def on_lane(model: calrt.Model, lane: Lane) -> calrt.Sequence:
    return calrt.Sequence(model, lane)


def copy_into(kv: Kv, source: Lane, p0: int = -1, p1: int = -1) -> Lane:
    target = kv.reserve(64)
    kv.seq_cp(source, target, p0, p1)
    return target


# ---- what an operation leaves ---------------------------------------------------------------------


def test_caps_name_each_operation_and_why(any_model: calrt.Model) -> None:
    caps = any_model.kv.caps()
    assert tuple(caps) == tuple(f"seq_{op}" for op in OPS)
    for support in caps.values():
        assert isinstance(support, OpSupport)
        assert support.why
        assert support.how in ("native", "host", "recompute", "unsupported")
    for always in ("seq_rm_tail", "seq_keep", "seq_clear"):
        assert caps[always].how == "native"


def test_an_operation_is_done_or_refused_as_caps_say(any_model: calrt.Model, tmp_path: Path) -> None:
    kv = any_model.kv
    with filled(any_model, PROMPT) as s, nullcontext() if any_model.lanes == 1 else kv.reserve(64) as lane:
        other = lane or s.lane  # bare has one
        calls = {
            "rm_tail": lambda: kv.seq_rm(s.lane, 39),
            "rm_middle": lambda: kv.seq_rm(s.lane, 3, 5),
            "add": lambda: kv.seq_add(s.lane, 5, -1, -2),
            "div": lambda: kv.seq_div(s.lane, 0, 4, 1 << 20),
            "cp_full": lambda: kv.seq_cp(s.lane, other),
            "cp_prefix": lambda: kv.seq_cp(s.lane, other, 0, 7),
            "cp_range": lambda: kv.seq_cp(s.lane, other, 3, 7),
            "keep": lambda: kv.seq_keep(s.lane),
            "shift": lambda: kv.shift(s.lane, 4),
            "save": lambda: kv.save(s.lane, tmp_path / "state"),
            "clear": lambda: kv.clear(s.lane),
        }
        for op, call in calls.items():
            kv.clear(s.lane)
            s.prefill(PROMPT)
            before, support = kv.runs(s.lane), kv.caps()[f"seq_{op}"]
            if support.how in ("native", "host"):
                call()
                continue
            with pytest.raises(calrt.UnsupportedError, match=f"seq_{op}|kv_read|needs"):
                call()
            assert kv.runs(s.lane) == before
            assert other.length == (40 if other is s.lane else 0)


def test_a_cut_tail_is_as_if_it_had_never_been(any_model: calrt.Model) -> None:
    with filled(any_model, PROMPT[:11]) as fresh:
        want = logits(fresh, 9)
    with filled(any_model, PROMPT) as s:
        any_model.kv.seq_rm(s.lane, 11)
        assert s.length == 11
        assert np.array_equal(logits(s, 9), want)


@pytest.mark.parametrize("p1", [-1, 12])
def test_a_copy_goes_on_bit_by_bit_like_the_original(whole_model: calrt.Model, p1: int) -> None:
    kv = whole_model.kv
    with filled(whole_model, PROMPT) as s, on_lane(whole_model, copy_into(kv, s.lane, 0, p1)) as copy:
        if p1 > 0:
            kv.seq_rm(s.lane, p1)
        assert kv.state(s.lane) == kv.state(copy.lane)
        assert np.array_equal(logits(s, 5), logits(copy, 5))


def test_a_copied_range_keeps_its_positions_until_it_is_moved(whole_model: calrt.Model) -> None:
    kv = whole_model.kv
    with filled(whole_model, PROMPT) as s, copy_into(kv, s.lane, 10, 20) as copy:
        assert kv.runs(copy) == [Run(10, 10, 10, 10, False)]
        assert (kv.seq_pos_min(copy), kv.seq_pos_max(copy), copy.length) == (10, 19, 0)
        assert copy.pending is not None
        assert "[0, 10)" in copy.pending
        assert "hole" in repr(copy)
        with pytest.raises(calrt.StateError, match="hole"):
            on_lane(whole_model, copy).decode(1)
        kv.seq_add(copy, 10, -1, -10)
        kv.apply(copy)
        assert copy.pending is None
        assert copy.length == 10
        on_lane(whole_model, copy).decode(1)


def test_a_shift_on_mock_is_a_fresh_prefill_of_what_is_left(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s, filled(mock_model, PROMPT[:4] + PROMPT[14:]) as fresh:
        assert kv.shift(s.lane, 1000) == Shift(s.length, 0)  # as many as there are
        assert kv.shift(s.lane, 4, 10) == Shift(4, 10)
        assert kv.state(s.lane) == kv.state(fresh.lane)
        assert np.array_equal(logits(s, 8), logits(fresh, 8))


def test_a_shift_that_is_refused_changes_nothing(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s:
        kv.seq_rm(s.lane, 6, 8)
        before = kv.runs(s.lane)
        for _ in range(2):
            with pytest.raises(calrt.KvSequenceError, match="hole"):
                kv.shift(s.lane, 2, 3)
            assert kv.runs(s.lane) == before


def test_keys_farther_apart_than_a_lane_is_long_are_refused(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with pytest.raises(
        calrt.InvalidArgumentError, match=f"every={kv.cells + 1}: a lane has {kv.cells} cells"
    ):
        kv.enable_prefixes(kv.cells + 1)
    kv.enable_prefixes(kv.cells)


def test_what_is_left_is_in_the_lane_after_a_shift_there_and_back(whole_model: calrt.Model) -> None:
    kv = whole_model.kv
    with filled(whole_model, PROMPT) as s:
        before = kv.state(s.lane)
        kv.seq_add(s.lane, 0, -1, 5)
        kv.seq_add(s.lane, 0, -1, -5)
        assert s.lane.pending is None
        kv.apply(s.lane)
        assert kv.state(s.lane) == before


def test_chunks_are_reused_where_they_are_wanted(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    wanted = PROMPT[:6] + PROMPT[11:25] + [1, 2, 3]
    with filled(mock_model, PROMPT) as s, filled(mock_model, wanted[:20]) as fresh:
        assert kv.reuse_chunks(s.lane, PROMPT, wanted, least=8) == 20
        assert kv.state(s.lane) == kv.state(fresh.lane)
    with filled(mock_model, PROMPT) as s:
        assert kv.reuse_chunks(s.lane, PROMPT, PROMPT, least=1) == len(PROMPT) - 1  # one is computed
        with pytest.raises(calrt.InvalidArgumentError, match=r"held: 3 ids, but lane \d holds 39"):
            kv.reuse_chunks(s.lane, PROMPT[:3], wanted, least=1)
        with pytest.raises(calrt.InvalidArgumentError, match="wanted: empty"):
            kv.reuse_chunks(s.lane, PROMPT[:39], [], least=1)
    assert [Chunk(*c) for c in kv.native.matching_chunks([1, 2, 3, 4], [1, 3, 4], 2)] == [Chunk(2, 1, 2)]


# ---- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [None, PROMPT])
def test_a_state_goes_on_bit_by_bit(
    whole_model: calrt.Model, tmp_path: Path, tokens: list[int] | None
) -> None:
    kv, path = whole_model.kv, tmp_path / "state"
    with filled(whole_model, PROMPT) as s, kv.reserve(64) as lane, kv.reserve(64) as other:
        size = kv.save(s.lane, path, tokens)
        assert path.stat().st_size == size
        assert os.listdir(tmp_path) == ["state"]
        info = kv.load(lane, path)
        assert (info.cells, info.tokens, info.bytes) == (40, tokens or [], size)
        data = kv.state(s.lane, tokens)
        assert data == path.read_bytes()
        out = bytearray(size + 5)
        assert bytes(kv.state(s.lane, tokens, out=out)) == data
        assert out[size:] == bytes(5)
        assert kv.restore(other, memoryview(out)[:size]) == info
        want = logits(s, 5)
        for each in (lane, other):
            assert each.length == 40  # B023: the next token is all that is computed
            assert np.array_equal(logits(on_lane(whole_model, each), 5), want)


def test_empty_states_missing_files_and_busy_lanes(mock_model: calrt.Model, tmp_path: Path) -> None:
    """B022."""
    kv = mock_model.kv
    with kv.reserve(8) as empty, filled(mock_model, PROMPT) as live:
        kv.save(empty, tmp_path / "empty")
        assert kv.load(empty, tmp_path / "empty").cells == 0
        assert empty.length == 0
        before = kv.state(live.lane)
        missing, nowhere = tmp_path / "missing", tmp_path / "no_such" / "file"
        with pytest.raises(calrt.InvalidArgumentError) as caught:
            kv.load(live.lane, missing)
        assert caught.value.message == f"path: there is no file '{missing}': save a state there first"
        with pytest.raises(calrt.InvalidArgumentError) as caught:
            kv.save(live.lane, nowhere)
        folder = f"there is no folder '{nowhere.parent}/'; make it first"
        assert caught.value.message == f"path: cannot create '{nowhere}': {folder}"
        with pytest.raises(
            calrt.InvalidArgumentError, match=r"cannot create '/proc/state': .*path"
        ) as caught:
            kv.save(live.lane, "/proc/state")
        assert ".part" not in caught.value.message
        assert kv.snapshot(live.lane) == kv.snapshot(live.lane.index)
        for wrong, said in ((1, "lane is 1: a Lane"), (None, "lane is None: a Lane")):
            with pytest.raises(calrt.InvalidArgumentError, match=said):
                calrt.Sequence(mock_model, wrong)  # type: ignore[arg-type]
        with pytest.raises(calrt.InvalidArgumentError, match="tokens: 3 ids, but lane"):
            kv.state(live.lane, [1, 2, 3])
        with pytest.raises(calrt.InvalidArgumentError, match="out has 4 bytes"):
            kv.state(live.lane, out=bytearray(4))
        assert kv.state(live.lane) == before


def test_a_reservation_bounds_jobs_and_not_what_is_put_into_the_lane(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s, kv.reserve(8) as small:
        for fill in (lambda: kv.restore(small, kv.state(s.lane)), lambda: kv.seq_cp(s.lane, small)):
            fill()
            assert (small.length, small.reserved) == (len(PROMPT), 8)
            with pytest.raises(calrt.InvalidArgumentError, match="8 reserved"):
                mock_model.graphs["decode_b1"].submit(tokens=[1], positions=[small.length], lanes=[small])
            assert kv.state(small) == kv.state(s.lane)
            small.truncate(7)
            assert mock_model.graphs["decode_b1"].submit(tokens=[1], positions=[7], lanes=[small]).wait().done
        kv.check_integrity()


def test_a_full_disk_leaves_no_file(mock_model: calrt.Model, tmp_path: Path) -> None:
    kv = mock_model.kv
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with filled(mock_model, PROMPT) as live:
        before = kv.state(live.lane)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
        try:
            with pytest.raises(calrt.CalrtError, match="cannot write"):
                kv.save(live.lane, tmp_path / "state")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.listdir(tmp_path) == []
        with pytest.raises(calrt.InvalidArgumentError, match="no regular file"):
            kv.save(live.lane, tmp_path)  # a device would be replaced
        assert kv.state(live.lane) == before


def test_a_damaged_state_leaves_the_lane_as_it_is(whole_model: calrt.Model) -> None:
    kv = whole_model.kv
    with filled(whole_model, PROMPT) as saved, filled(whole_model, PROMPT[::-1]) as live:
        data, before = kv.state(saved.lane, PROMPT), kv.state(live.lane)
        step = max(len(data) // 97, 1)
        damages = [data[:n] for n in range(0, len(data), step)] + [data + b"\0"]
        for at in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            damages.append(bytes(flipped))
        for damaged in damages:
            with pytest.raises(calrt.CalrtError) as caught:
                kv.restore(live.lane, damaged)
            assert caught.value.code in (
                calrt.Status.KV_INVALID_SEQUENCE,
                calrt.Status.OUT_OF_RANGE,
                calrt.Status.VERSION_MISMATCH,
            )
        assert kv.state(live.lane) == before


def test_the_state_of_another_model_is_refused(mock_model: calrt.Model, tiny_package: Path) -> None:
    with filled(mock_model, PROMPT) as s, calrt.open("cpu") as device, device.load(tiny_package) as other:
        data = mock_model.kv.state(s.lane)
        with other.kv.reserve(64) as lane, pytest.raises(calrt.KvSequenceError, match=r"package|layout"):
            other.kv.restore(lane, data)


def test_a_pending_shift_is_applied_before_it_is_saved(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s, filled(mock_model, PROMPT[5:]) as fresh:
        kv.seq_rm(s.lane, 0, 5)
        kv.seq_add(s.lane, 5, -1, -5)
        assert s.lane.pending is not None
        assert "apply" in s.lane.pending
        assert kv.state(s.lane) == kv.state(fresh.lane)
        assert s.lane.pending is None
        kv.seq_rm(s.lane, 0, 5)
        with pytest.raises(calrt.KvSequenceError, match="hole"):
            kv.state(s.lane)


# ---- prefixes -------------------------------------------------------------------------------------


def test_one_prompt_over_and_over_gives_the_same(whole_model: calrt.Model) -> None:
    """B017, B016: with full, partial and no overlap; nothing grows."""
    kv = whole_model.kv
    kv.enable_prefixes(8)
    with filled(whole_model, PROMPT) as s:
        want = logits(s, 5)
    for wanted in (PROMPT, PROMPT, PROMPT[:20] + PROMPT[::-1][:20], PROMPT[::-1], PROMPT):
        lane = kv.try_reserve(64, prompt=wanted)
        assert lane.length < len(wanted)
        s = on_lane(whole_model, lane)
        s.prefill(wanted[s.length :])
        if wanted == PROMPT:
            assert np.array_equal(logits(s, 5), want)
            kv.seq_rm(lane, len(wanted))
        kv.park(lane, wanted)
        assert kv.free_lanes() == whole_model.lanes
        with pytest.raises(calrt.InvalidArgumentError):
            _ = lane.length
    counters = kv.prefix_counters()
    assert counters["hits"] >= 3
    assert counters["hit_tokens"] >= 2 * 39
    assert {event.kind for event in kv.prefix_events()} >= {"stored", "removed"}
    with kv.try_reserve(64, prompt=PROMPT, salt="another tenant") as lane:
        assert lane.length == 0
    assert kv.clear_prefixes() >= 1
    assert kv.stats()["states"] == {"FREE": whole_model.lanes}


def test_an_evicted_prefix_comes_back_from_the_host(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    kv.enable_prefixes(8, host_bytes=1 << 24)
    with pytest.raises(calrt.StateError):
        kv.enable_prefixes(16)
    for first in range(5):  # one more than there are lanes
        lane = kv.try_reserve(64, prompt=[first, *PROMPT])
        on_lane(mock_model, lane).prefill([first, *PROMPT])
        kv.park(lane, [first, *PROMPT])
    assert kv.prefix_counters()["spilled"] == 1
    lane = kv.try_reserve(64, prompt=[0, *PROMPT, 1])
    assert lane.length == 41
    assert kv.prefix_counters()["restored"] == 1
    with filled(mock_model, [0, *PROMPT]) as fresh, lane:
        assert kv.state(lane) == kv.state(fresh.lane)


# ---- bad input ------------------------------------------------------------------------------------

WILD = (-(2**63), -2, -1, 0, 1, 39, 40, 41, 2**31, 2**63 - 1)


def test_wild_numbers_are_clamped_or_refused(mock_model: calrt.Model) -> None:
    """B024."""
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s:
        for a in WILD:
            for b in WILD:
                kv.clear(s.lane)
                s.prefill(PROMPT)
                keep, discard = kv.shift(s.lane, a, b)
                assert keep >= 0
                assert 0 <= discard <= max(40 - keep - 1, 0)
                assert s.length == 40 - discard
                for op, numbers in ((kv.seq_rm, (a, b)), (kv.seq_add, (a, -1, b)), (kv.seq_div, (a, -1, b))):
                    before = kv.runs(s.lane)
                    try:
                        op(s.lane, *numbers)
                    except calrt.InvalidArgumentError as refused:
                        error = refused
                    else:
                        continue
                    assert any(field in error.message for field in ("p0=", "p1=", "d="))
                    assert kv.runs(s.lane) == before
        kv.check_integrity()


def test_what_a_reserve_is_not_told_has_the_defaults_of_its_signature(mock_model: calrt.Model) -> None:
    native: Any = mock_model.kv.native
    for lane in (native.try_reserve(8), native.try_reserve(tokens=8, only=False, salt="")):
        assert lane.reserved == 8
        lane.release()
    with pytest.raises(calrt.InvalidArgumentError, match="only is a NoneType"):
        native.try_reserve(8, only=None)  # no default: it was told
    with pytest.raises(calrt.InvalidArgumentError, match="salt is a NoneType"):
        native.try_reserve(8, salt=None)
    for call in (
        lambda: native.try_reserve(),
        lambda: native.try_reserve(8, tokens=8),
        lambda: native.try_reserve(8, else_=1),
        lambda: native.try_reserve(8, None, False, None, "", 0),
        lambda: native.can_allocate(),
        lambda: lane.release(1),
    ):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_lanes_of_others_are_refused(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    gone = kv.reserve(8)
    gone.release()
    with calrt.open("mock") as device, device.load("preset:tiny") as other, other.kv.reserve(8) as lane:
        for bad in (lane, gone):
            for op, more in ((kv.seq_rm, ()), (kv.apply, ()), (kv.shift, (1,)), (kv.state, ()), (kv.runs, ()),
                             (kv.restore, (b"x",)), (kv.park, ([1],)), (kv.seq_pos_max, ())):  # fmt: skip
                with pytest.raises(calrt.InvalidArgumentError, match="lane"):
                    op(bad, *more)  # type: ignore[operator]
        with filled(mock_model, PROMPT) as s, pytest.raises(calrt.InvalidArgumentError, match="target"):
            kv.seq_cp(s.lane, lane)


def test_a_closed_model_answers_so(tiny_package: Path) -> None:
    with calrt.open("cpu") as device:
        model = device.load(tiny_package)
        kv, lane = model.kv, model.kv.reserve(8)
        model.close()
        for call in (lambda: kv.reserve(8), lambda: kv.try_reserve(8), lambda: kv.apply(lane),
                     lambda: kv.clear(lane), lambda: kv.state(lane), kv.enable_prefixes):  # fmt: skip
            with pytest.raises(calrt.StateError):
                call()
        assert kv.stats()["lanes"] == model.lanes
        lane.release()
