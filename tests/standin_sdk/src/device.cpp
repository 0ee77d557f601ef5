// SPDX-License-Identifier: Apache-2.0
// The runtime, the one VirtualDevice and its trace.
#include <chrono>

#include "state.h"

namespace calrt::standin {

constexpr uint64_t kChipBytes = uint64_t{16} << 30;

Runtime& runtime() {
  static Runtime one;
  return one;
}

int check_up() { return runtime().up ? 0 : refuse(CALRT_E_NOT_INIT, "calrt_init was not called"); }

int check_device(const calrt_vdev* device) {
  if (device != nullptr && device == runtime().device) return 0;
  return misuse(CALRT_E_HANDLE, "not an open device");
}

int check_model(const calrt_model* model) {
  const calrt_vdev* device = runtime().device;
  if (model != nullptr && device != nullptr && device->model.get() == model) return 0;
  return misuse(CALRT_E_HANDLE, "not a loaded model");
}

int check_idle(const calrt_model& model, const char* what) {
  const uint32_t runs = model.outstanding();
  return runs == 0 ? 0 : misuse(CALRT_E_STATE, "%s: %u runs are outstanding", what, runs);
}

uint64_t device_ticks() {  // 100 MHz, beginning anywhere
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count()) / 10 + 123'456'789;
}

void trace(calrt_vdev& device, int32_t phase, const Run& run, const Graph& graph) {
  Trace& trace = device.trace;
  if (trace.capacity == 0) return;
  if (trace.events.size() == trace.capacity) trace.events.pop_front();
  trace.events.push_back({device_ticks(), run.number, graph.name.c_str(), phase, 0});
}

}  // namespace calrt::standin

using namespace calrt::standin;

int calrt_init(void) {
  {
    const Lock lock(runtime().mutex);
    if (runtime().up) return refuse(CALRT_E_INIT_TWICE, "calrt_init was called already");
    std::string why;
    if (!read_vices(&why))
      return refuse(CALRT_E_ARGUMENT, "CALRT_STANDIN_VICES: %s is not known", why.c_str());
  }
  STANDIN_CHECK(enter(Function::init));
  const Lock lock(runtime().mutex);
  runtime().up = true;
  return 0;
}

int calrt_shutdown(void) {
  STANDIN_ENTER(shutdown);
  if (runtime().device != nullptr) return refuse(CALRT_E_STATE, "a device is open");
  runtime().up = false;
  return 0;
}

int calrt_vdev_count(uint32_t* out) {
  STANDIN_ENTER(vdev_count);
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = 1;
  return 0;
}

int calrt_vdev_open(uint32_t index, calrt_vdev** out) {
  STANDIN_ENTER(vdev_open);
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  if (index != 0) return refuse(CALRT_E_NO_DEVICE, "index=%u: there is one device", index);
  if (runtime().device != nullptr) return refuse(CALRT_E_DEVICE_BUSY, "the device is open");
  *out = runtime().device = new calrt_vdev;
  return 0;
}

int calrt_vdev_close(calrt_vdev* vdev) {
  STANDIN_ENTER(vdev_close);
  STANDIN_CHECK(check_device(vdev));
  if (vdev->model != nullptr) return misuse(CALRT_E_STATE, "a model is loaded");
  runtime().device = nullptr;
  delete vdev;
  return 0;
}

int calrt_vdev_info(calrt_vdev* vdev, calrt_vdev_desc* out) {
  STANDIN_ENTER(vdev_info);
  STANDIN_CHECK(check_device(vdev));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = {vdev->name.c_str(), vdev->firmware.c_str(), kChips, kQueueDepth};
  return 0;
}

int calrt_vdev_chip_memory(calrt_vdev* vdev, uint32_t chip, uint64_t* total, uint64_t* free) {
  STANDIN_ENTER(vdev_chip_memory);
  STANDIN_CHECK(check_device(vdev));
  if (total == nullptr || free == nullptr) return refuse(CALRT_E_ARGUMENT, "total or free is null");
  if (chip >= kChips) return refuse(CALRT_E_ARGUMENT, "chip=%u of %u", chip, kChips);
  *total = *free = kChipBytes;
  if (vdev->model != nullptr)
    *free -= (vdev->model->desc.weight_bytes + vdev->model->desc.kv_bytes) / kChips;
  return 0;
}

int calrt_vdev_set_parallel_mode(calrt_vdev* vdev, int mode) {
  STANDIN_ENTER(vdev_set_parallel_mode);
  STANDIN_CHECK(check_device(vdev));
  if (mode != CALRT_PARALLEL_NONE && mode != CALRT_PARALLEL_TENSOR)
    return refuse(CALRT_E_ARGUMENT, "mode=%d is not known", mode);
  if (vdev->model != nullptr) return refuse(CALRT_E_STATE, "a model is loaded");
  vdev->mode = mode;
  return 0;
}

int calrt_vdev_get_parallel_mode(calrt_vdev* vdev, int* mode) {
  STANDIN_ENTER(vdev_get_parallel_mode);
  STANDIN_CHECK(check_device(vdev));
  if (mode == nullptr) return refuse(CALRT_E_ARGUMENT, "mode is null");
  *mode = vdev->mode;
  return 0;
}

int calrt_vdev_counters(calrt_vdev* vdev, calrt_counters* out) {
  STANDIN_ENTER(vdev_counters);
  STANDIN_CHECK(check_device(vdev));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = vdev->counters;
  out->outstanding = vdev->model != nullptr ? vdev->model->outstanding() : 0;
  out->h2d_kib = static_cast<uint32_t>(vdev->h2d_bytes >> 10);
  out->d2h_kib = static_cast<uint32_t>(vdev->d2h_bytes >> 10);
  return 0;
}

int calrt_trace_start(calrt_vdev* vdev, uint32_t capacity) {
  STANDIN_ENTER(trace_start);
  STANDIN_CHECK(check_device(vdev));
  if (capacity == 0) return refuse(CALRT_E_ARGUMENT, "capacity=0");
  if (vdev->trace.capacity != 0) return refuse(CALRT_E_TRACE, "the trace runs");
  vdev->trace = {capacity, {}};
  return 0;
}

int calrt_trace_read(calrt_vdev* vdev, calrt_trace_event* out, uint32_t* n, uint64_t* now) {
  STANDIN_ENTER(trace_read);
  STANDIN_CHECK(check_device(vdev));
  if (out == nullptr || n == nullptr || now == nullptr)
    return refuse(CALRT_E_ARGUMENT, "out, n or now is null");
  if (vdev->trace.capacity == 0) return refuse(CALRT_E_TRACE, "no trace runs");
  uint32_t taken = 0;
  for (auto& events = vdev->trace.events; taken < *n && !events.empty(); events.pop_front())
    out[taken++] = events.front();
  *n = taken;
  *now = device_ticks();
  return 0;
}

int calrt_trace_stop(calrt_vdev* vdev) {
  STANDIN_ENTER(trace_stop);
  STANDIN_CHECK(check_device(vdev));
  if (vdev->trace.capacity == 0) return refuse(CALRT_E_TRACE, "no trace runs");
  vdev->trace = {};
  return 0;
}
