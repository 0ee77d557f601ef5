# SPDX-License-Identifier: Apache-2.0
"""BF16 conversion through the binding: bit-equal to ml_dtypes, zero-copy where promised, typed refusals."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import calrt
from calrt import bf16

ALL_BITS = np.arange(1 << 16, dtype=np.uint16)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16)


def hard_values(count: int) -> np.ndarray:
    """float32 with every exponent, ties, NaN payloads, subnormals and the largest finite numbers."""
    rng = np.random.default_rng(5)
    words = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    special = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x00000001, 0x80000000]
    ties = [0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0x00008000, 0x00018000]
    return np.concatenate([words, np.array(special + ties, np.uint32)]).view(np.float32)


def test_all_bf16_values_survive_the_round_trip() -> None:
    wide = bf16.to_f32(bf16.view(ALL_BITS))
    assert wide.dtype == np.float32
    assert (wide.view(np.uint32) == ALL_BITS.astype(np.uint32) << 16).all()
    back, nan = bits(bf16.from_f32(wide)), np.isnan(wide)
    assert (back[~nan] == ALL_BITS[~nan]).all()
    assert np.isnan(bf16.to_f32(bf16.view(back[nan]))).all()
    assert (back[nan] >> 15 == ALL_BITS[nan] >> 15).all()  # the sign is kept


def test_rounding_is_that_of_ml_dtypes() -> None:
    values = hard_values(200_000)
    with np.errstate(all="ignore"):  # casting a signalling NaN warns
        theirs = values.astype(ml_dtypes.bfloat16)
    assert (bits(bf16.from_f32(values)) == bits(theirs)).all()


def test_every_tail_length() -> None:
    values = hard_values(100)
    values = values[~np.isnan(values)]
    for n in range(70):
        assert (bits(bf16.from_f32(values[:n])) == bits(values[:n].astype(ml_dtypes.bfloat16))).all()
        assert (
            bf16.to_f32(bf16.from_f32(values[:n])) == values[:n].astype(ml_dtypes.bfloat16).astype("f4")
        ).all()


def test_known_vector() -> None:
    assert bits(bf16.from_f32([1.0, -2.5, 3e38])).tolist() == [0x3F80, 0xC020, 0x7F62]


@pytest.mark.parametrize("name", calrt.isas())
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    code = (
        "import numpy as np, calrt, hashlib; "
        "v = np.random.default_rng(1).integers(0, 1 << 32, 100003, dtype=np.uint32).view('f4'); "
        "h = calrt.bf16.from_f32(v); "
        "print(calrt.isa(), hashlib.sha256(h.tobytes() + calrt.bf16.to_f32(h).tobytes()).hexdigest())"
    )

    def run(isa: str) -> list[str]:
        env = {**os.environ, "CALRT_ISA": isa}
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout.split()

    pinned, portable = run(name), run("portable")
    assert pinned[0] == name
    assert pinned[1] == portable[1]


def test_out_is_filled_and_returned() -> None:
    values = np.linspace(-4, 4, 6000, dtype=np.float32).reshape(60, 100)
    half = np.empty((60, 100), bf16.dtype)
    assert bf16.from_f32(values, out=half) is half
    wide = np.empty((60, 100), np.float32)
    assert bf16.to_f32(half, out=wide) is wide
    assert (wide == values.astype(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_shapes_are_kept_and_strides_allowed_on_the_way_in() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert bf16.from_f32(values).shape == (2, 3, 4)
    assert (bf16.to_f32(bf16.from_f32(values.T)) == values.T).all()
    assert bf16.from_f32(np.float32(1)[()] * np.ones((), np.float32)).shape == ()
    assert bf16.from_f32(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_view_shares_memory() -> None:
    words = np.array([0x3F80], np.uint16)
    seen = bf16.view(words)
    words[0] = 0x4000
    assert float(seen[0]) == 2.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: bf16.from_f32(np.zeros(3)), "float64"),
        (lambda: bf16.from_f32(np.zeros(3, ">f4")), ">f4"),
        (lambda: bf16.to_f32(np.zeros(3, np.float16)), "float16"),
        (lambda: bf16.to_f32(np.zeros(3, np.uint16)), "view"),
        (lambda: bf16.view(np.zeros(3, np.int16)), "int16"),
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=np.zeros(3, "f4")), "out has dtype"),
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=np.zeros(4, bf16.dtype)), "out has shape"),
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=np.zeros(6, bf16.dtype)[::2]), "contiguous"),
    ],
)
def test_refusals_name_the_argument(call, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(calrt.InvalidArgumentError, match=text):
        call()


def test_out_must_be_writable() -> None:
    out = np.zeros(3, bf16.dtype)
    out.setflags(write=False)
    with pytest.raises(calrt.InvalidArgumentError, match="writable"):
        bf16.from_f32(np.zeros(3, "f4"), out=out)
