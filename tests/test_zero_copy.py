# SPDX-License-Identifier: Apache-2.0
"""Views share the runtime's memory, are counted, and outlive everything; copies are copies."""

from __future__ import annotations

import ctypes
import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import calrt
from calrt import _core

VOCAB = 384


def one_job(model: calrt.Model, token: int = 1) -> calrt.Job:
    with model.kv.reserve(4) as lane:
        return model.graphs["decode_b1"].submit(tokens=[token], positions=[0], lanes=[lane]).wait()


@pytest.fixture
def bf16_model(device: calrt.Device, tiny_package: Path) -> Iterator[calrt.Model]:
    with device.load(tiny_package, lanes=2, cells=64, logits_dtype="bf16") as loaded:
        yield loaded


@pytest.fixture(params=["f32", "bf16"])
def logits(request: pytest.FixtureRequest, device: calrt.Device, tiny_package: Path) -> Iterator[Any]:
    """A finished job's logits, [1, 384], of either dtype."""
    with device.load(tiny_package, lanes=2, cells=64, logits_dtype=request.param) as loaded:
        yield one_job(loaded).outputs["logits"]


# ---- DLPack, read by its published layout -------------------------------------------------------


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DlManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    ]


class DlManaged(ctypes.Structure):
    _fields_ = [
        ("tensor", DlTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


def capsule_pointer(capsule: object, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, name))


def versioned(capsule: object) -> DlManagedVersioned:
    return DlManagedVersioned.from_address(capsule_pointer(capsule, b"dltensor_versioned"))


def take_over(capsule: object) -> None:
    """What a consumer does: renames the capsule, and calls the deleter in its own time."""
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, USED)


USED = b"used_dltensor_versioned"


# ---- sharing ------------------------------------------------------------------------------------


def test_all_views_show_one_address_and_copy_nothing(logits: Any) -> None:
    before = _core.copied_bytes()
    array = logits.numpy()
    address = array.ctypes.data
    assert logits.numpy().ctypes.data == address
    assert logits.raw().ctypes.data == address
    assert np.frombuffer(memoryview(logits).cast("B"), np.uint8).ctypes.data == address
    capsule = logits.__dlpack__(max_version=(1, 0))
    assert versioned(capsule).tensor.data == address
    assert logits.row(0).numpy().ctypes.data == address
    assert _core.copied_bytes() == before
    logits.to_f32()
    assert _core.copied_bytes() == before + VOCAB * 4


def test_the_view_is_the_bound_buffer(device: calrt.Device, null_package: Path) -> None:
    with calrt.open("null") as null, null.load(null_package, lanes=1, cells=64) as model:
        graph = model.graphs["decode_b1"]
        buffer = null.alloc(VOCAB * 4, align=64)
        lane = model.kv.reserve(8)
        with graph.context(lanes=[lane]) as context:
            context[0].bind("logits", buffer)
            job = context[0].submit().wait()
            before = _core.copied_bytes()
            view = job.outputs["logits"].numpy()
            assert view.ctypes.data == np.frombuffer(memoryview(buffer), np.uint8).ctypes.data
            assert _core.copied_bytes() == before


def test_results_are_read_only_however_they_are_taken(logits: Any) -> None:
    for array in (logits.numpy(), logits.raw(), np.asarray(memoryview(logits)), logits.row(0).numpy()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    assert memoryview(logits).readonly
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(bytes(4)).readinto(logits)
    assert not np.from_dlpack(logits).flags.writeable if logits.dtype == "f32" else True


def test_inputs_are_writable(model: calrt.Model) -> None:
    with model.graphs["decode_b1"].context() as context:
        tokens = context[0].inputs["tokens"]
        memoryview(tokens)[0] = 7
        assert tokens.numpy()[0] == 7
        np.from_dlpack(tokens)[0] = 9
        assert tokens.numpy()[0] == 9


def test_memoryviews_have_format_shape_and_strides(logits: Any, model: calrt.Model) -> None:
    view = memoryview(logits)
    size = 4 if logits.dtype == "f32" else 2
    assert view.format == ("f" if logits.dtype == "f32" else "H")
    assert (view.shape, view.strides, view.itemsize) == ((1, VOCAB), (VOCAB * size, size), size)
    assert view.nbytes == VOCAB * size
    assert view.tobytes() == logits.numpy().tobytes()
    with model.graphs["decode_b1"].context() as context:
        assert memoryview(context[0].inputs["tokens"]).format == "i"


def test_from_dlpack_shares_f32_and_i32(model: calrt.Model) -> None:
    tensor = one_job(model).outputs["logits"]
    assert tensor.dtype == "f32"
    shared = np.from_dlpack(tensor)
    assert shared.ctypes.data == tensor.numpy().ctypes.data
    assert (shared == tensor.to_f32()).all()
    with model.graphs["decode_b1"].context() as context:
        tokens = context[0].inputs["tokens"]
        assert np.from_dlpack(tokens).dtype == np.int32
        assert np.from_dlpack(tokens).ctypes.data == tokens.numpy().ctypes.data


def test_dlpack_says_bf16_as_kdlbfloat(bf16_model: calrt.Model) -> None:
    tensor = one_job(bf16_model).outputs["logits"]
    capsule = tensor.__dlpack__(max_version=(1, 0))
    managed = versioned(capsule)
    assert (managed.major, managed.minor, managed.flags) == (1, 0, 1)
    told = managed.tensor
    assert (told.device_type, told.device_id) == (1, 0) == tensor.__dlpack_device__()
    assert (told.code, told.bits, told.lanes, told.ndim, told.byte_offset) == (4, 16, 1, 2, 0)
    assert (told.shape[0], told.shape[1], told.strides[1]) == (1, VOCAB, 1)
    raw = np.ctypeslib.as_array((ctypes.c_uint16 * VOCAB).from_address(told.data))
    assert (raw.view(ml_dtypes.bfloat16) == tensor.numpy()[0]).all()


def test_dlpack_of_a_buffer_is_its_bytes() -> None:
    with calrt.open("null") as null:
        buffer = null.alloc(100)
        array = np.from_dlpack(buffer)
        assert array.dtype == np.uint8
        assert array.shape == (100,)
        assert array.flags.writeable
        array[3] = 33
        assert memoryview(buffer)[3] == 33


# ---- copies and refusals ------------------------------------------------------------------------


def test_a_forced_copy_is_writable_and_counted(logits: Any) -> None:
    size = 4 if logits.dtype == "f32" else 2
    before = _core.copied_bytes()
    capsule = logits.__dlpack__(max_version=(1, 1), copy=True)
    assert _core.copied_bytes() == before + VOCAB * size
    managed = versioned(capsule)
    assert managed.flags == 2
    assert managed.tensor.data != logits.numpy().ctypes.data
    copied = ctypes.string_at(managed.tensor.data, VOCAB * size)
    assert copied == logits.numpy().tobytes()
    if logits.dtype == "f32":
        assert np.from_dlpack(logits, copy=True).flags.writeable
    before = _core.copied_bytes()
    logits.__dlpack__(max_version=(1, 0), copy=False)
    assert _core.copied_bytes() == before


def test_the_legacy_capsule_is_for_writable_memory_only(logits: Any, model: calrt.Model) -> None:
    for old in (None, (0, 8)):
        with pytest.raises(BufferError, match="read-only"):
            logits.__dlpack__(max_version=old)
        capsule = logits.__dlpack__(max_version=old, copy=True)
        managed = DlManaged.from_address(capsule_pointer(capsule, b"dltensor"))
        assert managed.tensor.shape[1] == VOCAB
    with model.graphs["decode_b1"].context() as context:
        tokens = context[0].inputs["tokens"]
        capsule = tokens.__dlpack__()
        managed = DlManaged.from_address(capsule_pointer(capsule, b"dltensor"))
        assert managed.tensor.data == tokens.numpy().ctypes.data


def test_what_dlpack_cannot_do_is_a_buffer_error(logits: Any) -> None:
    with pytest.raises(BufferError, match="stream must be None"):
        logits.__dlpack__(stream=1, max_version=(1, 0))
    with pytest.raises(BufferError, match=r"dl_device \(2, 0\)"):
        logits.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    logits.__dlpack__(max_version=(1, 0), dl_device=(1, 0))


# ---- life ---------------------------------------------------------------------------------------


def test_views_are_counted_and_close_names_them(device: calrt.Device, tiny_package: Path) -> None:
    model = device.load(tiny_package, lanes=2, cells=64)
    tensor = one_job(model).outputs["logits"]
    view, flat, capsule = tensor.numpy(), memoryview(tensor), tensor.__dlpack__(max_version=(1, 0))
    for thing in (model, device):
        with pytest.raises(BufferError, match=r"3 views \(3 of logits\) .* close\(force=True\)"):
            thing.close()
        assert not thing.closed
    assert one_job(model).state == "done"  # nothing is half closed
    flat.release()
    del capsule
    with pytest.raises(BufferError, match="1 view "):
        model.close()
    other = device.load(tiny_package, lanes=1, cells=64)
    other.close()  # another model's views are not its business
    del view
    model.close()
    model.close()


def test_a_context_is_closed_like_a_model(model: calrt.Model) -> None:
    context = model.graphs["decode_b1"].context(slots=2)
    slot = context[1]
    view = slot.inputs["tokens"].numpy()
    with pytest.raises(BufferError, match=r"graph context cannot be closed: 1 view \(1 of tokens\)"):
        context.close()
    assert len(context) == 2
    view[0] = 3
    context.close(force=True)
    context.close()
    assert view[0] == 3
    with pytest.raises(calrt.StateError, match="closed"):
        slot.submit()


@pytest.mark.parametrize("again", [False, True])
def test_a_second_close_leaves_living_views_alone(null_package: Path, again: bool) -> None:
    device = calrt.open("null")
    model = device.load(null_package, lanes=2, cells=64)
    context = model.graphs["decode_b1"].context(slots=2)
    buffer = device.alloc(16)
    buffer.write(bytes(range(16)))
    tensor = context[0].inputs["tokens"]
    views = [tensor.numpy(), np.asarray(memoryview(tensor)), np.from_dlpack(tensor)]
    raw = memoryview(buffer)
    views[0][:] = 3
    for thing in (context, buffer, model, device):
        for _ in range(2):  # a refusal is no close: the second one is refused alike
            with pytest.raises(BufferError, match="view"):
                thing.close()
        thing.close(force=True)
        for _ in range(3):
            thing.close(force=again)
        assert [int(view[0]) for view in views] == [3, 3, 3]
        assert bytes(raw) == bytes(range(16))
    del context, buffer, model, device, tensor
    gc.collect()
    views.pop()  # views go one by one, and the others stay
    gc.collect()
    views[0][:] = 5
    assert int(views[1][0]) == 5
    raw.release()
    with calrt.open("null") as other:  # what they lay in is counted out, nothing twice
        other.alloc(16).close()


def taken(tensor: calrt.Tensor, how: str) -> Any:
    if how == "numpy":
        return tensor.numpy()
    return np.asarray(memoryview(tensor)) if how == "memoryview" else np.from_dlpack(tensor)


@pytest.mark.parametrize("how", ["numpy", "memoryview", "dlpack"])
def test_a_view_outlives_everything_unchanged(tiny_package: Path, how: str) -> None:
    device = calrt.open("cpu", threads=1)
    model = device.load(tiny_package, lanes=2, cells=64)
    job = one_job(model, 5)
    tensor = job.outputs["logits"]
    view = taken(tensor, how)
    kept = view.copy()
    for token in range(10):  # the same buffers are not used for these
        one_job(model, token)
    model.close(force=True)
    device.close(force=True)
    del job, model, device, tensor
    gc.collect()
    with calrt.open("cpu", threads=1) as device, device.load(tiny_package, lanes=2, cells=64) as model:
        junk = [device.alloc(kept.nbytes) for _ in range(50)]
        for each in junk:
            each.write(np.full(kept.nbytes, 0xAB, np.uint8))
        for token in range(10):
            one_job(model, token)
    assert (view == kept).all()


def test_a_capsule_nobody_takes_frees_its_view(model: calrt.Model) -> None:
    buffer = calrt.open("null").alloc(64)
    capsule = buffer.__dlpack__(max_version=(1, 0))
    assert buffer.views == 1
    del capsule
    assert buffer.views == 0
    capsule = buffer.__dlpack__(max_version=(1, 0))
    managed = versioned(capsule)
    take_over(capsule)
    del capsule
    assert buffer.views == 1  # the consumer has it
    managed.deleter(ctypes.addressof(managed))
    assert buffer.views == 0


def test_with_and_garbage_collection_never_mind_a_view(tiny_package: Path) -> None:
    with calrt.open("cpu", threads=1) as device, device.load(tiny_package, lanes=1, cells=64) as model:
        view = one_job(model, 3).outputs["logits"].numpy()
        kept = view.copy()
    assert model.closed
    assert device.closed
    del model, device
    gc.collect()
    assert (view == kept).all()
