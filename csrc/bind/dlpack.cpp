// SPDX-License-Identifier: Apache-2.0
// DLPack, by its published layout (dmlc.github.io/dlpack, version 1.0); the structs are its ABI.
#include <cstring>
#include <new>

#include "base/copied_bytes.h"
#include "bind/errors.h"
#include "bind/views.h"
#include "layout/layout.h"

namespace calrt::bind {
namespace {

constexpr int kDlCpu = 1;
enum DlCode : uint8_t { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };
constexpr uint64_t kDlReadOnly = 1, kDlCopied = 2;

struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};
struct DlManaged {  // legacy: capsule "dltensor"
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
struct DlManagedVersioned {  // since 1.0: capsule "dltensor_versioned"
  uint32_t major, minor;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  uint64_t flags;
  DlTensor tensor;
};

// The consumer's, from any thread, with or without the GIL; it holds no Python object.
template <class Managed>
struct DlHolder {
  Managed managed{};
  int64_t shape[CALD_MAX_RANK], strides[CALD_MAX_RANK];
  std::unique_ptr<Export> view;  // null of a copy
  std::unique_ptr<char[]> copy;

  static void destroy(Managed* managed) {
    std::unique_ptr<DlHolder> holder(static_cast<DlHolder*>(managed->context));
    if (holder->view && Py_IsInitialized() != 0 && PyGILState_Check() != 0)
      drop_without_gil(holder->view);
  }
};

template <class Managed>
constexpr const char* kDlName = "dltensor";
template <>
constexpr const char* kDlName<DlManagedVersioned> = "dltensor_versioned";

DlCode dl_code(int32_t dtype) {
  switch (dtype) {
    case CALD_BF16:
      return DL_BFLOAT;
    case CALD_F32:
    case CALD_F16:
      return DL_FLOAT;
    case CALD_U8:
    case CALD_U16:
    case CALD_U32:
      return DL_UINT;
    default:
      return DL_INT;
  }
}

// Row-major copy of strided elements.
void copy_rows(const StridedMemory& memory, const char* from, int32_t axis, char** to) {
  const size_t size = dtype_size(memory.dtype);
  if (axis == memory.rank) {
    std::memcpy(*to, from, size);
    *to += size;
    return;
  }
  const auto n = static_cast<size_t>(memory.shape[axis]);
  if (axis == memory.rank - 1 && memory.strides[axis] == static_cast<py::ssize_t>(size)) {
    std::memcpy(*to, from, n * size);
    *to += n * size;
    return;
  }
  for (size_t i = 0; i < n; ++i)
    copy_rows(memory, from + static_cast<py::ssize_t>(i) * memory.strides[axis], axis + 1, to);
}

template <class Managed>
py::object make_capsule(const StridedMemory& memory, bool copy) {
  using Holder = DlHolder<Managed>;
  const auto size = static_cast<int64_t>(dtype_size(memory.dtype));
  auto holder = std::make_unique<Holder>();
  DlTensor& tensor = holder->managed.tensor;
  tensor.data = memory.data;
  if (copy) {
    const uint64_t bytes = memory.elements() * static_cast<uint64_t>(size);
    holder->copy.reset(new (std::nothrow) char[bytes]);
    if (!holder->copy)
      raise(fail(Status::OUT_OF_HOST_MEMORY, "no %llu bytes of host memory for a copy",
                 static_cast<unsigned long long>(bytes)));
    without_gil([&] {
      char* to = holder->copy.get();
      copy_rows(memory, static_cast<const char*>(memory.data), 0, &to);
    });
    count_copied(bytes);
    tensor.data = holder->copy.get();
  } else {
    holder->view = std::make_unique<Export>(memory.owner, memory.buffer);
  }
  int64_t step = 1;
  for (int32_t i = memory.rank; i-- > 0;) {
    if (!copy && memory.shape[i] != 1 && memory.strides[i] % size != 0)
      raise_buffer_error(
          "DLPack cannot say strides that are no multiple of the element: use to_f32()");
    holder->shape[i] = memory.shape[i];
    holder->strides[i] = copy || memory.shape[i] == 1 ? step : memory.strides[i] / size;
    step *= memory.shape[i];
  }
  tensor.device_type = kDlCpu;
  tensor.ndim = memory.rank;
  tensor.code = dl_code(memory.dtype);
  tensor.bits = static_cast<uint8_t>(size * 8);
  tensor.lanes = 1;
  tensor.shape = holder->shape;
  tensor.strides = holder->strides;
  holder->managed.context = holder.get();
  holder->managed.deleter = &Holder::destroy;
  if constexpr (std::is_same_v<Managed, DlManagedVersioned>) {
    holder->managed.major = 1;
    holder->managed.flags = copy ? kDlCopied : memory.writable ? 0 : kDlReadOnly;
  }
  // A consumer renames the capsule when it takes the memory over; otherwise it is still ours.
  PyObject* capsule = PyCapsule_New(&holder->managed, kDlName<Managed>, [](PyObject* ended) {
    if (PyCapsule_IsValid(ended, kDlName<Managed>) == 0) return;
    Holder::destroy(static_cast<Managed*>(PyCapsule_GetPointer(ended, kDlName<Managed>)));
  });
  if (capsule == nullptr) throw py::error_already_set();
  (void)holder.release();
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

py::tuple dlpack_device() { return py::make_tuple(kDlCpu, 0); }

py::object dlpack_capsule(const StridedMemory& memory, const py::object& stream,
                          const std::optional<std::pair<int, int>>& max_version,
                          const std::optional<std::pair<int, int>>& dl_device,
                          std::optional<bool> copy) {
  if (!stream.is_none()) raise_buffer_error("stream must be None: this memory is the host's");
  if (dl_device && *dl_device != std::pair(kDlCpu, 0))
    raise_buffer_error("dl_device (" + std::to_string(dl_device->first) + ", " +
                       std::to_string(dl_device->second) +
                       "): this memory is exported to the host only, (1, 0)");
  const bool copies = copy.value_or(false);
  if (max_version && max_version->first >= 1)
    return make_capsule<DlManagedVersioned>(memory, copies);
  if (!memory.writable && !copies)
    raise_buffer_error(
        "results are read-only, which DLPack before 1.0 cannot say: ask with "
        "max_version=(1, 0) or for copy=True");
  return make_capsule<DlManaged>(memory, copies);
}

}  // namespace calrt::bind
