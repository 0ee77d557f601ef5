# SPDX-License-Identifier: Apache-2.0
"""Prompts that begin alike: reservations of each kind find them; token ids are checked everywhere alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import calrt
from calrt.kv import Lane

PROMPT = [(7 * i + 3) % 256 for i in range(40)]


@pytest.fixture
def mock_model() -> Iterator[calrt.Model]:
    with calrt.open("mock") as device, device.load("preset:tiny", lanes=4) as model:
        yield model
        model.kv.check_integrity()


def logits(sequence: calrt.Sequence, token: int) -> npt.NDArray[np.float32]:
    return sequence.decode(token).to_f32()


def filled(model: calrt.Model, tokens: list[int]) -> calrt.Sequence:
    sequence = model.sequence(64)
    sequence.prefill(tokens)
    return sequence


def test_a_waiting_reservation_finds_a_prompt_too(mock_model: calrt.Model) -> None:
    """In place, by a copy, and from the host; the answer is the same as of a prompt computed anew."""
    kv = mock_model.kv
    kv.enable_prefixes(8, host_bytes=1 << 24)
    with filled(mock_model, PROMPT) as s:
        want = logits(s, 5)

    def awaited(**prompt: Any) -> Lane:
        return asyncio.run(kv.areserve(64, 30, **prompt))

    for reserve in (lambda **prompt: kv.reserve(64, 30, **prompt), awaited):
        lane = kv.reserve(64)
        calrt.Sequence(mock_model, lane).prefill(PROMPT)
        kv.park(lane, PROMPT, salt="mine")
        with reserve(prompt=PROMPT, salt="another's") as other:
            assert other.length == 0
        with reserve(prompt=PROMPT[:24], salt="mine") as copied:
            assert copied.length == 23
        others = [kv.reserve(64, 30, prompt=[9] * 9) for _ in range(kv.lanes)]  # evict it
        for other in others:
            other.release()
        lane = reserve(prompt=PROMPT, salt="mine")
        assert lane.length == len(PROMPT) - 1
        s = calrt.Sequence(mock_model, lane)
        s.prefill(PROMPT[-1:])
        assert np.array_equal(logits(s, 5), want)
        lane.release()
        kv.clear_prefixes()
    counters = kv.prefix_counters()
    assert (counters["spilled"], counters["restored"], counters["spill_failures"]) == (2, 2, 0)
    assert kv.free_lanes() == kv.lanes


def test_a_waiter_is_granted_what_was_parked_while_it_waited(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    kv.enable_prefixes(8)
    held = [kv.reserve(64) for _ in range(kv.lanes)]
    calrt.Sequence(mock_model, held[0]).prefill(PROMPT)

    async def run() -> Lane:
        task = asyncio.ensure_future(kv.areserve(64, 60, prompt=PROMPT))
        await asyncio.sleep(0)
        kv.park(held[0], PROMPT)
        return await task

    with asyncio.run(run()) as lane:
        assert lane.length == len(PROMPT) - 1


def test_what_failed_does_not_say_how_prefixes_are_kept(mock_model: calrt.Model) -> None:
    kv = mock_model.kv
    with filled(mock_model, PROMPT) as s:
        for tokens in (PROMPT[:3], [*PROMPT, 1], [-1] * len(PROMPT)):
            with pytest.raises(calrt.InvalidArgumentError):
                kv.park(s.lane, tokens)
        with kv.try_reserve(8, prompt=PROMPT) as lane:  # a miss
            assert lane.length == 0
        kv.enable_prefixes(4)
        kv.park(s.lane, PROMPT)
    with kv.try_reserve(64, prompt=[*PROMPT[:6], 1, 1]) as lane:
        assert lane.length == 6  # of keys every 4 tokens
    with pytest.raises(calrt.StateError):
        kv.enable_prefixes(8)


def ids_taken(model: calrt.Model, lane: Lane) -> dict[str, Callable[[Any], object]]:
    """Every call that takes token ids, with the name of the argument before a colon."""
    kv, table = model.kv, calrt.kv.Allocator(2, 64)
    table.enable_prefixes(4)
    mine = table.try_reserve(8, now_ns=0).commit()
    return {
        "prompt:generate": lambda ids: list(model.generate(ids, max_tokens=1)),
        "prompt:try_reserve": lambda ids: kv.try_reserve(8, prompt=ids),
        "prompt:reserve": lambda ids: kv.reserve(8, prompt=ids),
        "prompt:areserve": lambda ids: asyncio.run(kv.areserve(8, prompt=ids)),
        "tokens:park": lambda ids: kv.park(lane, ids),
        "tokens:state": lambda ids: kv.state(lane, tokens=ids),
        "tokens:save": lambda ids: kv.save(lane, "/nowhere/at/all", tokens=ids),
        "held:reuse_chunks": lambda ids: kv.reuse_chunks(lane, ids, PROMPT, 4),
        "wanted:reuse_chunks": lambda ids: kv.reuse_chunks(lane, PROMPT, ids, 4),
        "tokens:prefill": lambda ids: calrt.Sequence(model, lane).prefill(ids),
        "prompt:Allocator.try_reserve": lambda ids: table.try_reserve(8, now_ns=0, prompt=ids),
        "tokens:Allocator.park": lambda ids: table.park(mine, ids),
        "tokens:Allocator.find_prefix": lambda ids: table.find_prefix(ids),
        "tokens:Allocator.begin_hosted": lambda ids: table.begin_hosted(ids, 64),
    }


def test_token_ids_are_checked_everywhere_alike(mock_model: calrt.Model) -> None:
    vocab = mock_model.vocab
    with filled(mock_model, PROMPT) as s:
        before = mock_model.kv.runs(s.lane)
        for name, call in ids_taken(mock_model, s.lane).items():
            argument = name.split(":")[0]
            most = (1 << 31) - 1 if "Allocator" in name else vocab - 1
            for raw in (b"12345678", bytearray(8), memoryview(b"12345678")):
                with pytest.raises(
                    calrt.InvalidArgumentError, match=f"^INVALID_ARGUMENT.*{argument} is "
                ) as e:
                    call(raw)
                assert "token ids" in str(e.value), name
            for bad, shown in ((-1, "-1"), (most + 1, str(most + 1)), (1 << 70, str(1 << 70)), (True, "True"),
                               (2.0, "2.0"), ("7", "'7'"), (None, "a NoneType")):  # fmt: skip
                with pytest.raises(calrt.InvalidArgumentError) as e:
                    call([1, bad] * 20)
                assert e.value.code is calrt.Status.OUT_OF_RANGE, name
                assert e.value.message == f"{argument}: {shown} is no token id; 0..{most} are due", name
        assert mock_model.kv.runs(s.lane) == before
