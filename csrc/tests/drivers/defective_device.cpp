// SPDX-License-Identifier: Apache-2.0
// Defects of drivers, devices and errors.
#include <cstdlib>
#include <map>

#include "tests/drivers/defective.h"

namespace calrt::defective {
namespace {

constexpr uint64_t kLeaked = 100;

int open_drivers = 0;
char* mortal_name = nullptr;  // of the device that is open

cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  if (is("opens_once") && open_drivers > 0)
    return refuse(err, CALD_INVALID_STATE, "the driver is open");
  ++open_drivers;
  if (is("logs_to_older_host")) host->log_job(host->user, CALD_LOG_DEBUG, 0, "defective", "open");
  if (is("keeps_handshake_host")) host = state().handshake_host;
  if (is("leaks_host_memory")) (void)host->alloc(host->user, kLeaked, 16);
  if (is("writes_behind_block")) {
    auto* block = static_cast<char*>(host->alloc(host->user, kLeaked, 16));
    block[kLeaked] = 1;
    host->free(host->user, block);
  }
  return mock().driver_open(host, out, err);
}

void driver_close(cald_driver* driver) {
  if (driver != nullptr) --open_drivers;
  mock().driver_close(driver);
}

void change(cald_device_info* info) {
  if (is("depth_0")) info->depth = 0;
  if (is("queue_one_more")) info->queue -= 1;
  if (is("sets_struct_size")) info->struct_size = sizeof *info;
}

cald_status device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* out,
                             cald_error* err) {
  if (is("status_77") && index != 0) return 77;
  if (is("needs_an_error") && index != 0) err->native_code = 5;
  if (is("enumerates_too_many")) index = 0;
  const cald_status status = mock().device_enumerate(driver, index, out, err);
  if (status == CALD_OK) {
    change(out);
    if (is("enumerates_another")) out->device_class = "mock-another";
  } else if (err != nullptr) {
    if (is("mute_error")) err->message[0] = '\0';
    if (is("other_code_in_error")) err->code = CALD_INTERNAL;
    if (is("error_overrun")) std::memset(err + 1, 0, 8);
  }
  return status;
}

cald_status device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                        cald_error* err) {
  std::vector<cald_option> left;
  for (uint32_t i = 0; i < options->n_options; ++i) {
    const cald_option& option = options->options[i];
    if (std::strcmp(option.key, "defect") == 0) {
      if (!is_known(option.value))
        return refuse(err, CALD_INVALID_ARGUMENT, "option defect: there is no such defect");
      state().defect = option.value;
    } else if (!is("takes_any_option") || std::strstr(option.key, "conformance") == nullptr) {
      left.push_back(option);
    }
  }
  cald_device_options asked = *options;
  asked.n_options = static_cast<uint32_t>(left.size());
  asked.options = left.data();
  return mock().device_open(driver, &asked, out, err);
}

void device_close(cald_device* device) {
  if (is("null_close_crashes") && device == nullptr)
    *reinterpret_cast<volatile int*>(device) = 0;  // NOLINT: it is the defect
  if (mortal_name != nullptr) std::memset(mortal_name, 'x', std::strlen(mortal_name));
  mortal_name = nullptr;
  mock().device_close(device);
}

cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  if (is("ignores_struct_size")) {
    const uint32_t size = out->struct_size;
    cald_device_info whole{};
    whole.struct_size = sizeof whole;
    const cald_status status = mock().device_info(device, &whole, err);
    std::memcpy(static_cast<void*>(out), &whole, sizeof whole);
    out->struct_size = size;
    return status;
  }
  const cald_status status = mock().device_info(device, out, err);
  if (status != CALD_OK) return status;
  change(out);
  if (is("name_dies")) {
    if (mortal_name == nullptr) mortal_name = strdup(out->name);
    out->name = mortal_name;
  }
  return status;
}

cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  const cald_status status = mock().device_topology(device, out, err);
  static const cald_link nowhere[] = {{CALD_HOST_CHIP, 7, 1000, 5}};
  if (is("sets_size_of_topology")) out->struct_size = sizeof *out;
  if (is("link_to_nowhere")) {
    out->links = nowhere;
    out->n_links = 1;
  }
  return status;
}

cald_status device_health(cald_device* device, cald_health* out, cald_error* err) {
  const cald_status status = mock().device_health(device, out, err);
  if (is("hot")) out->temperature_c = 5000;
  return status;
}

cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count, cald_error* err) {
  uint32_t all = 0;
  if (is("caps_overrun") && out != nullptr && *count != 0 &&
      mock().device_caps(device, nullptr, &all, err) == CALD_OK)
    *count = all;
  const uint32_t room = *count;
  const cald_status status = mock().device_caps(device, out, count, err);
  if (is("cap_without_source") && out != nullptr && room > 1) out[1].source = "";
  return status;
}

cald_status device_counters(cald_device* device, cald_counter* out, uint32_t* count,
                            cald_error* err) {
  const uint32_t room = *count;
  const cald_status status = mock().device_counters(device, out, count, err);
  if (is("counter_falls") && out != nullptr && room != 0) out[0].value = 1000 - out[0].value;
  return status;
}

cald_status session_open(cald_device* device, uint32_t index, cald_session** out, cald_error* err) {
  cald_device_info info{};
  info.struct_size = sizeof info;
  (void)mock().device_info(device, &info, nullptr);
  if (is("session_too_many") && index >= info.sessions) index = info.sessions - 1;
  if (is("one_session_of_two") && index > 0)
    return refuse(err, CALD_INVALID_STATE, "another session is open");
  static std::map<std::pair<const cald_device*, uint32_t>, cald_session*> open;
  const cald_status status = mock().session_open(device, index, out, err);
  if (status == CALD_OK) open[{device, index}] = *out;
  if (status != CALD_INVALID_STATE || !is("opens_session_twice")) return status;
  *out = open[{device, index}];
  return CALD_OK;
}

}  // namespace

void wrap_device(cald_driver_table* table) {
  table->driver_open = driver_open;
  table->driver_close = driver_close;
  table->device_enumerate = device_enumerate;
  table->device_open = device_open;
  table->device_close = device_close;
  table->device_info = device_info;
  table->device_topology = device_topology;
  table->device_health = device_health;
  table->device_caps = device_caps;
  table->device_counters = device_counters;
  table->session_open = session_open;
}

}  // namespace calrt::defective
