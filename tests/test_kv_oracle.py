# SPDX-License-Identifier: Apache-2.0
"""Shifted lanes of the cpu device against float64: K is turned as the formula says, nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import calrt
from calrt.kv import Shift
from calrt.package_build import build_package
from oracle import Oracle, relative_rms
from tiny_gguf import make_llama

F32 = npt.NDArray[np.float32]
KEEP, DISCARD, LENGTH, MORE = 4, 11, 40, 8
STEP = 2.0**-8  # what rounding to BF16 may change a number by, relative
PROMPT = [int(t) for t in np.random.default_rng(5).integers(3, 384, LENGTH)]
LEFT = PROMPT[:KEEP] + PROMPT[KEEP + DISCARD :]
GOES_ON = [int(t) for t in np.random.default_rng(6).integers(3, 384, MORE)]
# Root mean square of the difference of logits, relative. An f32 device differs in the order of sums alone.
CLOSE = {"f32": 1e-4, "bf16": 0.1}
DTYPES = tuple(CLOSE)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], tuple[Path, Path]]:
    """GGUF and package for (layers, compute dtype)."""
    folder = tmp_path_factory.mktemp("shift")
    made = {}
    for layers in (1, 4):
        source = make_llama(folder / f"{layers}.gguf", layers=layers, seed=layers)
        for dtype in DTYPES:
            made[layers, dtype] = (
                source,
                build_package(source, folder / f"{layers}-{dtype}", compute=dtype),
            )
    return made


@contextmanager
def loaded(package: Path, dtype: str) -> Iterator[calrt.Model]:
    with (
        calrt.open("cpu", threads=1) as device,
        device.load(package, lanes=2, cells=64, compute=dtype, kv_dtype=dtype, logits_dtype="f32") as model,
    ):
        yield model
        model.kv.check_integrity()


def filled(model: calrt.Model, tokens: list[int]) -> calrt.Sequence:
    sequence = model.sequence(64)
    sequence.prefill(tokens)
    return sequence


def go_on(sequence: calrt.Sequence) -> F32:
    return np.stack([sequence.decode(token).to_f32() for token in GOES_ON])


def cells_of(model: calrt.Model, sequence: calrt.Sequence, layers: int, dtype: str) -> tuple[F32, F32]:
    """K and V as they lie in the lane, [layers, cells, pairs, 2], out of its state blob (docs/kv.md)."""
    blob = np.frombuffer(model.kv.state(sequence.lane), np.uint8)
    header = blob[:144].view("<u4")
    cells, slab = int(header[29]), int(header[30])
    assert cells <= slab
    data = blob[int(header[3]) :]
    if dtype == "bf16":
        values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view("<f4")
    both = values.reshape(layers, 2, cells, -1, 2)
    return both[:, 0], both[:, 1]


def within(found: F32, wanted: F32, of_pair: float, of_number: float) -> bool:
    """Whether each number of K is near: in parts of its pair's length, which turning keeps, and of itself."""
    pair = np.sqrt((wanted.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
    room = of_pair * pair + of_number * np.abs(wanted) + 1e-30
    return bool((np.abs(found.astype(np.float64) - wanted) <= room).all())


def roundings(dtype: str, times: float) -> float:
    """`times` roundings of a cell."""
    return times * STEP if dtype == "bf16" else 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shifted_deep_model_is_the_oracle_that_turns_its_own_k(
    dtype: str, files: dict[tuple[int, str], tuple[Path, Path]]
) -> None:
    source, package = files[4, dtype]
    oracle = Oracle(source, "bf16" if dtype == "bf16" else None)
    plain, shifted = oracle.sequence(), oracle.sequence()
    for each in (plain, shifted):
        each.feed(PROMPT)
    shifted.shift(KEEP, DISCARD)
    wanted, fresh = shifted.feed(GOES_ON), oracle.logits(LEFT + GOES_ON)[-MORE:]
    with (
        loaded(package, dtype) as model,
        filled(model, PROMPT) as sequence,
        filled(model, PROMPT) as unshifted,
    ):
        assert model.kv.shift(sequence.lane, KEEP, DISCARD) == Shift(KEEP, DISCARD)
        assert sequence.length == len(LEFT)
        found = go_on(sequence)
        # As near as a lane that was not shifted is to its own: BF16 adds up from layer to layer.
        gate = 2 * relative_rms(go_on(unshifted), plain.feed(GOES_ON))
        assert gate < CLOSE[dtype]
        assert relative_rms(found, wanted) < gate
        assert relative_rms(found, fresh) > 4 * gate  # its cells have seen what was discarded


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_shifted_layer_is_a_fresh_prefill(
    dtype: str, files: dict[tuple[int, str], tuple[Path, Path]]
) -> None:
    with (
        loaded(files[1, dtype][1], dtype) as model,
        filled(model, PROMPT) as sequence,
        filled(model, LEFT) as fresh,
    ):
        model.kv.shift(sequence.lane, KEEP, DISCARD)
        (keys, values), (fresh_keys, fresh_values) = (cells_of(model, s, 1, dtype) for s in (sequence, fresh))
        assert np.array_equal(values, fresh_values)
        assert np.array_equal(keys[:, :KEEP], fresh_keys[:, :KEEP])
        # Rounded before it was turned and after; the fresh one once.
        assert within(keys, fresh_keys, roundings(dtype, 1 + 4 * STEP), roundings(dtype, 2))
        assert relative_rms(go_on(sequence), go_on(fresh)) < CLOSE[dtype] / 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_shifts_are_one_of_both(dtype: str, files: dict[tuple[int, str], tuple[Path, Path]]) -> None:
    with (
        loaded(files[4, dtype][1], dtype) as model,
        filled(model, PROMPT) as twice,
        filled(model, PROMPT) as once,
    ):
        model.kv.shift(twice.lane, KEEP, 5)
        model.kv.shift(twice.lane, KEEP, DISCARD - 5)
        model.kv.shift(once.lane, KEEP, DISCARD)
        (keys, values), (once_keys, once_values) = (cells_of(model, s, 4, dtype) for s in (twice, once))
        assert np.array_equal(values, once_values)
        assert within(keys, once_keys, roundings(dtype, 1 + 4 * STEP), roundings(dtype, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_there_and_back_is_where_it_was(dtype: str, files: dict[tuple[int, str], tuple[Path, Path]]) -> None:
    """Positions can rise in the books alone: no graph would run on what +d leaves, so no data follows it."""
    with loaded(files[4, dtype][1], dtype) as model, filled(model, PROMPT) as sequence:
        kv, lane = model.kv, sequence.lane
        before = kv.state(lane)
        for _ in range(2):
            kv.seq_add(lane, KEEP, -1, DISCARD)
            with pytest.raises(calrt.KvSequenceError, match=r"\[4, 15\) are a hole"):
                kv.apply(lane)
            kv.seq_add(lane, KEEP, -1, -DISCARD)
            kv.apply(lane)
            assert kv.state(lane) == before
