// SPDX-License-Identifier: Apache-2.0
// Opening and closing, and lists.
#include <algorithm>

#include "layers/isolate/entries.h"
#include "layers/isolate/stub.h"

namespace calrt::isolate::own {
namespace {

using layers::Entry;

constexpr uint32_t kMostListed = 65536;  // entries in one answer

cald_status give_failure(const Error& failed, cald_error* error) {
  cald_error why{};
  why.code = static_cast<cald_status>(failed.code);
  why.native_code = failed.native_code;
  std::snprintf(why.message, sizeof why.message, "%s", failed.message.c_str());
  std::snprintf(why.where, sizeof why.where, "driver_open");
  give_error(error, why);
  return why.code;
}

Result<std::shared_ptr<Remote>> open_remote(const std::string& library, const Facts& facts) {
  CALRT_TRY_ASSIGN(std::shared_ptr<Remote> remote, Remote::start(library));
  cald_status answered = CALD_OK;
  CALRT_TRY_ASSIGN(const Facts now, remote->load(CALD_ABI_VERSION, &answered));
  if (answered == CALD_OK && now == facts) return remote;
  return fail(Status::VERSION_MISMATCH,
              "driver %.160s is another one than when it was first opened here (version %.32s, "
              "then %.32s): restart this process",
              library.c_str(), now.version.c_str(), facts.version.c_str());
}

}  // namespace

cald_status open_driver(const std::string& library, const Facts& facts, const cald_host* host,
                        cald_driver** out, cald_error* error) {
  auto opened = open_remote(library, facts);
  if (!opened.ok()) return give_failure(opened.error(), error);
  std::shared_ptr<Remote> remote = std::move(*opened);
  remote->lend(host);
  Call call(*remote, Entry::driver_open, error);
  if (!call.run()) return call.status();
  const auto token = call.in().get<uint64_t>();
  if (!call.in().good()) return call.nonsense();
  if (token != 0) *out = handle_of<cald_driver>(new Object{remote.get(), token, remote});
  return call.status();
}

void driver_close(cald_driver* driver) {
  // The child ends when the object goes, last.
  Stub<Entry::driver_close, void (*)(cald_driver*)>::entry(driver);
}

cald_status device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                        cald_error* error) {
  using Plain = Stub<Entry::device_open, decltype(&device_open)>;
  if (driver == nullptr) return Plain::null_handle(error);
  // What is isolate's own stays here.
  Remote& remote = *object_of(driver)->remote;
  Patience patience = remote.patience();
  cald_device_options theirs = whole(*options);
  std::vector<cald_option> left;
  for (uint32_t i = 0; i < theirs.n_options; ++i) {
    const cald_option& option = theirs.options[i];
    const auto taken = patience.take(option.key, option.value);
    if (!taken.ok()) return give_failure(taken.error(), error);
    if (!*taken) left.push_back(option);
  }
  remote.set_patience(patience);
  theirs.n_options = static_cast<uint32_t>(left.size());
  theirs.options = left.data();
  return Plain::entry(driver, &theirs, out, error);
}

cald_status session_open(cald_device* device, uint32_t index, cald_session** out,
                         cald_error* error) {
  using Plain = Stub<Entry::session_open, decltype(&session_open)>;
  if (device == nullptr) return Plain::null_handle(error);
  Object& on = *object_of(device);
  Call call(*on.remote, Entry::session_open, error);
  call.out().pod(on.token);
  call.out().pod(index);
  if (!call.run()) return call.status();
  const auto token = call.in().get<uint64_t>();
  const bool virtual_clock = call.in().get<uint8_t>() != 0;
  if (!call.in().good()) return call.nonsense();
  if (token != 0) {
    auto* made = new Object{on.remote, token};
    made->virtual_clock = virtual_clock;
    *out = handle_of<cald_session>(made);
  }
  return call.status();
}

cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count, cald_error* error) {
  Object& on = *object_of(device);
  const uint32_t room = out != nullptr ? std::min(*count, kMostListed) : 0;
  Call call(*on.remote, Entry::device_caps, error);
  call.out().pod(on.token);
  call.out().pod(static_cast<uint8_t>(out != nullptr));
  call.out().pod(out != nullptr ? room : *count);
  for (uint32_t i = 0; i < room; ++i) call.out().pod(out[i].struct_size);
  if (!call.run()) return call.status();
  call.in().pod(*count);
  const auto given = call.in().get<uint32_t>();
  call.in().check(given <= room);
  for (uint32_t i = 0; i < given && call.in().good(); ++i) {
    cald_cap cap{};
    carry(call.in(), cap);
    if (call.in().good()) give(&out[i], cap);
  }
  return call.in().good() ? call.status() : call.nonsense();
}

cald_status device_counters(cald_device* device, cald_counter* out, uint32_t* count,
                            cald_error* error) {
  Object& on = *object_of(device);
  const uint32_t room = out != nullptr ? std::min(*count, kMostListed) : 0;
  Call call(*on.remote, Entry::device_counters, error);
  call.out().pod(on.token);
  call.out().pod(static_cast<uint8_t>(out != nullptr));
  call.out().pod(out != nullptr ? room : *count);
  if (!call.run()) return call.status();
  call.in().pod(*count);
  const auto given = call.in().get<uint32_t>();
  call.in().check(given <= room);
  for (uint32_t i = 0; i < given && call.in().good(); ++i) carry(call.in(), out[i]);
  return call.in().good() ? call.status() : call.nonsense();
}

cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                        cald_trace_info* info, cald_error* error) {
  Object& on = *object_of(device);
  const uint32_t room = out != nullptr ? std::min(*count, kMostListed) : 0;
  Call call(*on.remote, Entry::trace_drain, error);
  call.out().pod(on.token);
  call.out().pod(room);
  call.out().pod(static_cast<uint8_t>(info != nullptr));
  if (info != nullptr) put(call.out(), info);
  if (!call.run()) return call.status();
  const auto given = call.in().get<uint32_t>();
  call.in().check(given <= room);
  for (uint32_t i = 0; i < given && call.in().good(); ++i) carry(call.in(), out[i]);
  if (info != nullptr) get(call.in(), on, info);
  if (!call.in().good()) return call.nonsense();
  *count = given;
  return call.status();
}

}  // namespace calrt::isolate::own
