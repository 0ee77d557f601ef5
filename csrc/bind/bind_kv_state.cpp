// SPDX-License-Identifier: Apache-2.0
// save, load, state and restore of Kv.
#include <pybind11/stl.h>

#include <climits>
#include <cstring>

#include "bind/kv_objects.h"
#include "bind/named.h"
#include "engine/kv_state.h"

namespace calrt::bind {
namespace {

using LaneArg = Arg<"lane", Ref<PyLane>>;
using PathArg = Arg<"path", std::string>;
using Seconds = Arg<"timeout", std::optional<double>>;

// The bytes behind an argument, where they lie, as long as this lives. With the GIL held.
class BytesArgument {
 public:
  BytesArgument(const char* field, const py::handle& value, bool writable) {
    const char* due = writable ? ": contiguous memory that can be written is due, e.g. a bytearray"
                               : ": contiguous bytes are due";
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(value.ptr(), &view_, flags) != 0) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_BufferError) &&
          !PyErr_ExceptionMatches(PyExc_ValueError))
        throw py::error_already_set();
      PyErr_Clear();
      refuse_type(field, value, due);
    }
    // Pointers to objects are no bytes.
    if (view_.format == nullptr || std::strchr(view_.format, 'O') == nullptr) return;
    PyBuffer_Release(&view_);
    refuse_type(field, value, due);
  }
  ~BytesArgument() { PyBuffer_Release(&view_); }
  BytesArgument(const BytesArgument&) = delete;
  BytesArgument& operator=(const BytesArgument&) = delete;
  std::span<unsigned char> bytes() const {
    return {static_cast<unsigned char*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

// (cells, tokens, bytes)
py::tuple describe_state(const kv::BlobHeader& header) {
  return py::make_tuple(header.cells, header.tokens, unwrap(kv::blob_bytes(header)));
}

// Bytes of the lane's state, once its data has followed its bookkeeping.
Result<uint64_t> settled_bytes(const PyKv& self, const kv::LaneRef& ref, size_t tokens,
                               const engine::MoveCall& call) {
  engine::KvMover& mover = *self.runner->mover();
  if (!mover.caps().read)
    return fail(Status::UNSUPPORTED, "save: this model's cells cannot be read (kv_read)");
  CALRT_TRY(mover.apply(ref, call));
  CALRT_TRY_ASSIGN(const kv::LaneSnapshot now, self.table().snapshot(ref));
  if (tokens != 0 && tokens != now.length)
    return fail(Status::SHAPE_MISMATCH, "tokens: %zu ids, but lane %u holds %u cells", tokens,
                ref.lane, now.length);
  return engine::state_bytes(mover, now.length, static_cast<uint32_t>(tokens));
}

// Ids to be saved with the cells; none if they are None.
std::vector<int32_t> ids_of(const PyKv& self, const py::object& tokens) {
  return tokens.is_none() ? std::vector<int32_t>() : self.tokens("tokens", tokens);
}

uint64_t save_to_file(const PyKv& self, LaneArg lane, PathArg path, const py::object& tokens,
                      Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  std::vector<int32_t> ids = ids_of(self, tokens);
  return run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) -> Result<uint64_t> {
    CALRT_TRY_ASSIGN(const uint64_t bytes, settled_bytes(self, ref, ids.size(), call));
    CALRT_TRY_ASSIGN(engine::FileSink sink, engine::FileSink::open(*path));
    CALRT_TRY(engine::save_state(*self.runner->mover(), ref, std::move(ids), sink, call));
    CALRT_TRY(sink.commit());
    return bytes;
  });
}

py::tuple load_from_file(const PyKv& self, LaneArg lane, PathArg path, Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  return describe_state(
      run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) -> Result<kv::BlobHeader> {
        CALRT_TRY_ASSIGN(engine::FileSource source, engine::FileSource::open(*path));
        return engine::load_state(*self.runner->mover(), ref, source, call);
      }));
}

py::object state_bytes_of(const PyKv& self, LaneArg lane, const py::object& tokens,
                          const py::object& out, Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  std::vector<int32_t> ids = ids_of(self, tokens);
  std::optional<BytesArgument> given;
  if (!out.is_none()) given.emplace("out", out, true);
  const uint64_t bytes = run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) {
    return settled_bytes(self, ref, ids.size(), call);
  });
  py::object made;
  std::span<unsigned char> memory;
  if (given) {
    if (given->bytes().size() < bytes)
      raise(fail(Status::OUT_OF_RANGE, "out has %zu bytes, but the state of lane %u takes %llu",
                 given->bytes().size(), (*lane)->lease->lane(),
                 static_cast<unsigned long long>(bytes)));
    memory = given->bytes().first(bytes);
  } else {
    made = py::reinterpret_steal<py::object>(
        bytes > PY_SSIZE_T_MAX
            ? PyErr_NoMemory()
            : PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!made) throw py::error_already_set();
    // Nobody else knows these bytes yet.
    memory = {reinterpret_cast<unsigned char*>(PyBytes_AS_STRING(made.ptr())), bytes};
  }
  run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) -> Result<void> {
    engine::MemorySink sink(memory);
    return engine::save_state(*self.runner->mover(), ref, std::move(ids), sink, call);
  });
  return given ? py::int_(bytes) : made;
}

py::tuple restore_from_bytes(const PyKv& self, LaneArg lane, const py::object& data,
                             Seconds timeout) {
  const engine::MoveCall call = self.move_call(*timeout);
  const BytesArgument bytes("data", data, false);
  return describe_state(run_on(self, "lane", **lane, [&](const kv::LaneRef& ref) {
    engine::MemorySource source(bytes.bytes());
    return engine::load_state(*self.runner->mover(), ref, source, call);
  }));
}

}  // namespace

void bind_kv_state(py::classh<PyKv>& kv) {
  kv.def("save", &save_to_file, py::arg("lane"), py::arg("path"), py::arg("tokens") = py::none(),
         py::arg("timeout") = py::none(), "See calrt.kv.Kv.save.")
      .def("load", &load_from_file, py::arg("lane"), py::arg("path"),
           py::arg("timeout") = py::none(), "See calrt.kv.Kv.load.")
      .def("state", &state_bytes_of, py::arg("lane"), py::arg("tokens") = py::none(),
           py::arg("out") = py::none(), py::arg("timeout") = py::none(), "See calrt.kv.Kv.state.")
      .def("restore", &restore_from_bytes, py::arg("lane"), py::arg("data"),
           py::arg("timeout") = py::none(), "See calrt.kv.Kv.restore.");
}

}  // namespace calrt::bind
