# SPDX-License-Identifier: Apache-2.0
"""BF16 conversion through the binding: bit-equal to ml_dtypes, zero-copy where promised, typed refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

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


def edge_values() -> np.ndarray:
    """Each of the 65,536 upper halves with a lower half at and around the tie."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (low[:, None] | ALL_BITS.astype(np.uint32)[None, :] << 16).view(np.float32)


def test_all_values_and_all_rounding_edges_are_those_of_ml_dtypes() -> None:
    words = bf16.view(ALL_BITS)
    with np.errstate(all="ignore"):  # casting a signalling NaN warns
        assert (bf16.to_f32(words).view(np.uint32) == words.astype(np.float32).view(np.uint32)).all()
        edges = edge_values()
        assert (bits(bf16.from_f32(edges)) == bits(edges.astype(ml_dtypes.bfloat16))).all()


def test_nan_stays_nan_with_its_sign_and_what_is_too_large_becomes_infinity() -> None:
    words = np.array(
        [0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F7FFF], "u4"
    )
    halves = bits(bf16.from_f32(words.view(np.float32)))
    assert halves.tolist() == [0x7FC0, 0xFFC0, 0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x7F7F]


def placed(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy that begins `offset` bytes after a cache line does."""
    room = np.zeros(values.nbytes + 192, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    array = room[begin : begin + values.nbytes].view(values.dtype)
    array[...] = values
    return array


@pytest.mark.parametrize("size", [3, 67, 5000])
def test_any_address_even_between_elements(size: int) -> None:
    values = np.linspace(-3, 3, size, dtype=np.float32)
    halves = values.astype(bf16.dtype)
    for offset in range(64):
        assert (bf16.from_f32(placed(values, offset), out=placed(halves * 0, 63 - offset)) == halves).all()
        wide = bf16.to_f32(placed(halves, offset), out=placed(values * 0, offset))
        assert (wide == halves.astype(np.float32)).all()


STRIDED = {
    "transposed": lambda a: a.T,
    "every third column": lambda a: a[:, ::3],
    "reversed rows": lambda a: a[::-1],
    "reversed columns": lambda a: a[:, ::-1],
    "part of the columns": lambda a: a[:, 5:77],
    "one column": lambda a: a[:, 3],
    "broadcast": lambda a: np.broadcast_to(a[0], (3, *a[0].shape)),
    "four dimensions": lambda a: a.reshape(6, 10, 4, 25).transpose(2, 0, 3, 1),
    "empty": lambda a: a[:, :0].T,
    "new axes": lambda a: a[None, ::2, None, :],
    "fortran": np.asfortranarray,
}


@pytest.mark.parametrize("how", STRIDED)
def test_strides_on_the_way_in(how: str) -> None:
    values = np.linspace(-9, 9, 6000, dtype=np.float32).reshape(60, 100)
    halves = values.astype(bf16.dtype)
    for source, convert, target in (
        (values, bf16.from_f32, bf16.dtype),
        (halves, bf16.to_f32, np.dtype(np.float32)),
    ):
        view = STRIDED[how](source)
        want = view.astype(target)
        for got in (convert(view), convert(view, out=np.empty(view.shape, target))):
            assert got.shape == want.shape
            assert got.flags.c_contiguous
            assert (got == want).all()


@pytest.mark.parametrize("step", [2, -1, -3])
@pytest.mark.parametrize("columns", [1, 511, 512, 513, 1023, 1024, 1025, 1537, 5000])
def test_rows_of_any_length_keep_their_order_through_the_piece(columns: int, step: int) -> None:
    # Elements apart go through a buffer of 512: all values within a row's reach differ.
    numbers = np.arange(3 * columns * abs(step), dtype=np.uint32)
    halves = (numbers % 0x7F7F).astype(np.uint16).view(bf16.dtype).reshape(3, -1)
    values = halves.astype(np.float32)
    for source, convert in ((values, bf16.from_f32), (halves, bf16.to_f32)):
        for view in (source[:, ::step], source[1, ::step]):
            assert view.shape[-1] == columns
            want = view.astype(bf16.dtype if source is values else np.float32)
            out = np.full((view.size + 64,), -1, want.dtype)
            target = out[: view.size].reshape(view.shape)
            for got in (convert(view), convert(view, out=target)):
                assert got.tobytes() == want.tobytes()
            assert (out[view.size :] == -1).all()  # nothing behind the last piece


@pytest.mark.parametrize("strided", [False, True])
def test_nothing_but_the_result_is_allocated(strided: bool) -> None:
    values = np.linspace(-4, 4, 1 << 18, dtype=np.float32).reshape(512, 512)
    halves = values.astype(bf16.dtype)
    narrow, wide = np.empty_like(halves), np.empty_like(values)
    if strided:
        values, halves = values.T, halves.T
    tracemalloc.start()
    try:
        for convert, source, out in ((bf16.from_f32, values, narrow), (bf16.to_f32, halves, wide)):
            convert(source, out=out)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            convert(source, out=out)
            assert tracemalloc.get_traced_memory()[1] - before < 2048  # call frames, no array
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            made = convert(source)
            assert made.nbytes <= tracemalloc.get_traced_memory()[1] - before < made.nbytes + 2048
    finally:
        tracemalloc.stop()


def test_scalars_and_empty_arrays() -> None:
    one = bf16.from_f32(np.array(1.5, np.float32))
    assert one.shape == ()
    assert bf16.to_f32(one).shape == ()
    assert float(bf16.to_f32(one)) == 1.5
    for shape in ((0,), (3, 0), (0, 5, 2)):
        assert bf16.to_f32(bf16.from_f32(np.empty(shape, np.float32))).shape == shape
    assert bf16.from_f32([]).shape == (0,)


def test_memory_that_is_shared_is_refused() -> None:
    room = np.zeros(400, np.uint8)
    values, inside = room.view(np.float32), room[100:300].view(bf16.dtype)
    for call in (
        lambda: bf16.from_f32(values, out=inside),
        lambda: bf16.from_f32(values[::-1], out=inside),
        lambda: bf16.to_f32(inside, out=values),
    ):
        with pytest.raises(calrt.InvalidArgumentError, match=r"share memory|out has shape"):
            call()
    with pytest.raises(calrt.InvalidArgumentError, match="out and a share memory"):
        bf16.from_f32(values[:50], out=room[100:200].view(bf16.dtype))
    with pytest.raises(calrt.InvalidArgumentError, match="out and b share memory"):
        bf16.to_f32(room[:200].view(bf16.dtype)[::-1], out=room.view(np.float32))
    # Side by side is not shared.
    assert bf16.from_f32(values[:50], out=room[200:300].view(bf16.dtype)).shape == (50,)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: bf16.to_f32([1.0]), "b is a list"),  # type: ignore[arg-type]
        (lambda: bf16.to_f32(np.zeros(3, bf16.dtype.newbyteorder(">"))), "bfloat16 is due"),
        (lambda: bf16.to_f32(np.zeros(3, "f4")), "float32"),
        (lambda: bf16.view(np.zeros(3, ">u2")), ">u2"),
        (lambda: bf16.view([1]), "list"),  # type: ignore[arg-type]
        (lambda: bf16.from_f32(np.zeros(3, np.float16)), "float16"),
        (lambda: bf16.from_f32(np.zeros(3, "i4")), "int32"),
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=[0, 0, 0]), "out is a list"),  # type: ignore[arg-type]
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=np.zeros(3, np.float16)), "out has dtype float16"),
        (lambda: bf16.from_f32(np.zeros(3, "f4"), out=np.zeros((3, 1), bf16.dtype)), r"\(3, 1\)"),
        (lambda: bf16.to_f32(np.zeros(3, bf16.dtype), out=np.zeros(3, ">f4")), "out has dtype >f4"),
        (lambda: bf16.to_f32(np.zeros((2, 2), bf16.dtype), out=np.zeros((2, 2), "f4").T), "contiguous"),
    ],
)
def test_more_refusals(call, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(calrt.InvalidArgumentError, match=text):
        call()


def test_a_result_that_cannot_be_had_is_a_memory_error() -> None:
    shape = (1 << 29, 1 << 29)  # numpy alone can describe it
    with pytest.raises(MemoryError):
        bf16.from_f32(np.broadcast_to(np.float32(1), shape))
    with pytest.raises(MemoryError):
        bf16.to_f32(np.broadcast_to(bf16.dtype.type(1), shape))


def test_a_bad_instruction_set_is_refused_by_name() -> None:
    code = "import calrt\ntry:\n    calrt.isa()\nexcept calrt.InvalidArgumentError as e:\n    print(e)"
    for pinned in ("sse9", "AVX2", "neon" if "neon" not in calrt.isas() else "avx2"):
        env = {**os.environ, "CALRT_ISA": pinned}
        run = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert pinned in run.stdout
        for usable in calrt.isas():
            assert usable in run.stdout


def test_views_share_memory_in_every_form() -> None:
    words = np.arange(24, dtype=np.uint16).reshape(4, 6)
    for given in (words, words[:, ::2], words[::-1], words[:0], words.reshape(-1)[5:]):
        seen = bf16.view(given)
        assert seen.dtype == bf16.dtype
        assert seen.strides == given.strides
        assert seen.ctypes.data == given.ctypes.data
    fixed = words.copy()
    fixed.setflags(write=False)
    assert not bf16.view(fixed).flags.writeable


def test_without_a_code_of_its_own_the_buffer_protocol_refuses_rather_than_lies() -> None:
    # There is no struct code for bfloat16: what must not happen is a wrong item size or another format.
    halves = bf16.from_f32([1.0, -2.5])
    try:
        seen = memoryview(halves)
    except (ValueError, TypeError, BufferError):
        return
    assert seen.itemsize == 2
    assert seen.format not in ("e", "<e", "=e")
