// SPDX-License-Identifier: Apache-2.0
#include "bind/views.h"

#include "bind/arguments.h"
#include "bind/errors.h"
#include "layout/layout.h"

namespace calrt::bind {
namespace {

// Lets go of the GIL if memory may be freed by it: that calls into a driver.
void drop_export(Export* view) {
  std::unique_ptr<Export> dropped(view);
  if (dropped->is_last_owner()) drop_without_gil(dropped);
}

// What the buffer protocol calls each dtype; bf16, which it has no letter for, is its 16 bits.
const char* format_of(int32_t dtype) {
  switch (dtype) {
    case CALD_F32:
      return "f";
    case CALD_F16:
      return "e";
    case CALD_I8:
      return "b";
    case CALD_U8:
      return "B";
    case CALD_I16:
      return "h";
    case CALD_BF16:
    case CALD_U16:
      return "H";
    case CALD_I32:
      return "i";
    case CALD_U32:
      return "I";
    case CALD_I64:
      return "q";
    default:
      return nullptr;
  }
}

// Behind one Py_buffer, until it is released.
struct HeldBuffer {
  StridedMemory memory;
  Export view;
  explicit HeldBuffer(StridedMemory what)
      : memory(std::move(what)), view(memory.owner, memory.buffer) {}
};

bool asks(int flags, int what) { return (flags & what) == what; }

void fill(Py_buffer* view, PyObject* exporter, StridedMemory memory, int flags) {
  const char* format = format_of(memory.dtype);
  if (format == nullptr) raise_buffer_error("the buffer protocol has no letter for this dtype");
  if (asks(flags, PyBUF_WRITABLE) && !memory.writable)
    raise_buffer_error("results are read-only: copy them to change them");
  const bool c = memory.c_contiguous();
  const bool f = memory.f_contiguous();
  if ((!c && (asks(flags, PyBUF_C_CONTIGUOUS) || !asks(flags, PyBUF_STRIDES))) ||
      (!f && asks(flags, PyBUF_F_CONTIGUOUS)) || (!c && !f && asks(flags, PyBUF_ANY_CONTIGUOUS)))
    raise_buffer_error(
        "this memory is not contiguous as asked for: use to_f32() or numpy().copy()");
  auto held = std::make_unique<HeldBuffer>(std::move(memory));
  StridedMemory& of = held->memory;
  view->buf = of.data;
  view->itemsize = dtype_size(of.dtype);
  view->len = static_cast<Py_ssize_t>(of.elements()) * view->itemsize;
  view->readonly = of.writable ? 0 : 1;
  view->format = asks(flags, PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  view->ndim = asks(flags, PyBUF_ND) ? of.rank : 1;
  view->shape = asks(flags, PyBUF_ND) ? of.shape : nullptr;
  view->strides = asks(flags, PyBUF_STRIDES) ? of.strides : nullptr;
  view->suboffsets = nullptr;
  view->internal = held.release();
  view->obj = py::handle(exporter).inc_ref().ptr();
}

// By type: the same function serves every class that exports.
struct Exporter {
  PyTypeObject* type;
  StridedMemory (*memory)(py::handle self);
};
Exporter exporters[4] = {};

extern "C" int calrt_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  try {
    for (const Exporter& each : exporters)
      if (each.type == Py_TYPE(self)) {
        fill(view, self, each.memory(self), flags);
        return 0;
      }
    raise_buffer_error("this object exports no memory");
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
  return -1;
}

extern "C" void calrt_release_buffer(PyObject*, Py_buffer* view) {
  std::unique_ptr<HeldBuffer> held(static_cast<HeldBuffer*>(view->internal));
  if (!held) return;
  held->memory = StridedMemory();  // the view alone owns it now
  if (held->view.is_last_owner()) drop_without_gil(held);
}

}  // namespace

uint64_t StridedMemory::elements() const {
  uint64_t n = 1;
  for (int32_t i = 0; i < rank; ++i) n *= static_cast<uint64_t>(shape[i]);
  return n;
}

bool StridedMemory::c_contiguous() const {
  auto due = static_cast<py::ssize_t>(dtype_size(dtype));
  for (int32_t i = rank; i-- > 0; due *= shape[i])
    if (shape[i] != 1 && strides[i] != due) return false;
  return true;
}

bool StridedMemory::f_contiguous() const {
  auto due = static_cast<py::ssize_t>(dtype_size(dtype));
  for (int32_t i = 0; i < rank; due *= shape[i++])
    if (shape[i] != 1 && strides[i] != due) return false;
  return true;
}

py::object numpy_array(const StridedMemory& memory) {
  auto view = std::make_unique<Export>(memory.owner, memory.buffer);
  auto owner =
      py::reinterpret_steal<py::object>(PyCapsule_New(view.get(), nullptr, [](PyObject* ended) {
        drop_export(static_cast<Export*>(PyCapsule_GetPointer(ended, nullptr)));
      }));
  if (!owner) throw py::error_already_set();
  (void)view.release();
  // By hand: py::array has its shape and strides in vectors, and setflags() is a Python call.
  auto& numpy = py::detail::npy_api::get();
  auto array = py::reinterpret_steal<py::object>(numpy.PyArray_NewFromDescr_(
      numpy.PyArray_Type_, numpy_dtype(memory.dtype).release().ptr(), memory.rank,
      reinterpret_cast<const Py_intptr_t*>(memory.shape),
      reinterpret_cast<const Py_intptr_t*>(memory.strides), memory.data,
      memory.writable ? py::detail::npy_api::NPY_ARRAY_WRITEABLE_ : 0, nullptr));
  if (!array) throw py::error_already_set();
  if (numpy.PyArray_SetBaseObject_(array.ptr(), owner.release().ptr()) != 0)
    throw py::error_already_set();
  return array;
}

void export_buffers(py::handle type, StridedMemory (*memory)(py::handle self)) {
  auto* of = reinterpret_cast<PyTypeObject*>(type.ptr());
  for (Exporter& each : exporters)
    if (each.type == nullptr || each.type == of) {
      each = {of, memory};
      of->tp_as_buffer->bf_getbuffer = calrt_get_buffer;
      of->tp_as_buffer->bf_releasebuffer = calrt_release_buffer;
      return;
    }
}

void raise_buffer_error(const std::string& text) {
  PyErr_SetString(PyExc_BufferError, text.c_str());
  throw py::error_already_set();
}

void refuse_views(const char* what, const ExportCensus& census) {
  if (census.views() == 0) return;
  raise_buffer_error("the " + std::string(what) + " cannot be closed: " + census.text() +
                     " of its memory live; drop them, or close(force=True) and they keep it");
}

}  // namespace calrt::bind
