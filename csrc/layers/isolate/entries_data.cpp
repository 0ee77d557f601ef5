// SPDX-License-Identifier: Apache-2.0
// Buffers, packages, models: what carries data, or descriptors.
#include <algorithm>

#include "layers/isolate/descriptors.h"
#include "layers/isolate/entries.h"
#include "layers/isolate/stub.h"

namespace calrt::isolate::own {
namespace {

using layers::Entry;
using ull = unsigned long long;

// A block that both processes see, for one copy.
class Staging {
 public:
  Staging(Arena& arena, uint64_t bytes)
      : arena_(arena), block_(arena.take(std::max<uint64_t>(bytes, 1), 64)) {}
  ~Staging() {
    if (block_ != nullptr) arena_.give(block_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void* get() const { return block_; }

 private:
  Arena& arena_;
  void* block_;
};

// buffer_transfer and its two older forms.
cald_status transfer(Entry entry, Object& buffer, int32_t direction, uint64_t offset, void* host,
                     uint64_t bytes, uint64_t* moved, cald_error* error) {
  Remote& remote = *buffer.remote;
  // What is no buffer's size is for the driver to refuse: it is given nothing to read.
  const uint64_t staged = bytes <= remote.memory().staging_bytes() && host != nullptr ? bytes : 0;
  const Staging staging(remote.staging(), staged);
  Call call(remote, entry, error);
  if (staging.get() == nullptr)
    return call.refuse(CALD_OUT_OF_HOST_MEMORY,
                       "no shared memory for a copy of %llu bytes: copy in smaller pieces",
                       static_cast<ull>(bytes));
  if (direction == CALD_TO_DEVICE && staged != 0) std::memcpy(staging.get(), host, staged);
  const auto place =
      static_cast<uint64_t>(static_cast<unsigned char*>(staging.get()) - remote.memory().staging());
  call.out().pod(buffer.token);
  call.out().pod(direction);
  call.out().pod(offset);
  call.out().pod(bytes);
  call.out().pod(place);
  call.out().pod(staged);
  if (!call.run()) return call.status();
  call.in().pod(*moved);
  if (!call.in().good()) return call.nonsense();
  // As much as the driver says that it moved; where that makes no sense, calrt says so.
  if (direction == CALD_TO_HOST && staged != 0 && call.status() == CALD_OK)
    std::memcpy(host, staging.get(), std::min(*moved, staged));
  return call.status();
}

// Descriptors of the artifacts that have one, in order.
std::vector<int> descriptors_of(const cald_package& package) {
  std::vector<int> fds;
  for (uint32_t i = 0; i < package.n_artifacts; ++i)
    if (package.artifacts[i]->fd >= 0) fds.push_back(package.artifacts[i]->fd);
  return fds;
}

// Package, options and descriptors, as footprint and load take them. Not OK: they cannot be sent.
cald_status put_package(Call& call, Object& device, const cald_package* package,
                        const cald_load_options* options) {
  static std::atomic<uint64_t> last_parcel{0};
  Remote& remote = *device.remote;
  const uint64_t parcel = ++last_parcel;
  const std::vector<int> fds = descriptors_of(*package);
  call.out().pod(device.token);
  call.out().pod(parcel);
  put(call.out(), package);
  put(call.out(), options);
  if (remote.lost() || !call.out().good()) return CALD_OK;  // run() says so
  const std::scoped_lock lock(remote.socket_mutex());
  const auto sent = send_fds(remote.socket(), parcel, fds);
  return sent.ok() ? CALD_OK : call.refuse(CALD_DEVICE_LOST, "%s", sent.error().message.c_str());
}

}  // namespace

cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* error) {
  cald_buffer* made = nullptr;
  const cald_status status = Stub<Entry::buffer_alloc, decltype(&buffer_alloc)>::entry(
      device, domain, bytes, align, &made, error);
  if (made != nullptr) {
    object_of(made)->bytes = bytes;
    *out = made;
  }
  return status;
}

cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* error) {
  const Object& on = *object_of(buffer);
  Call call(*on.remote, Entry::buffer_map, error);
  call.out().pod(on.token);
  if (!call.run()) return call.status();
  const auto shared = call.in().get<uint8_t>();
  const auto place = call.in().get<uint64_t>();
  if (!call.in().good()) return call.nonsense();
  if (call.status() != CALD_OK) return call.status();
  if (shared == 0)
    return call.refuse(
        CALD_UNSUPPORTED,
        "the driver maps this buffer at memory of its own process, not at memory of its host's "
        "alloc: through isolate it has no address here; read and write copy");
  const SharedMemory& memory = on.remote->memory();
  if (place > memory.arena_bytes() || on.bytes > memory.arena_bytes() - place)
    return call.nonsense();
  *out = memory.arena() + place;
  return CALD_OK;
}

cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* error) {
  uint64_t moved = 0;
  return transfer(Entry::buffer_h2d, *object_of(buffer), CALD_TO_DEVICE, offset,
                  const_cast<void*>(src), bytes, &moved, error);
}

cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* error) {
  uint64_t moved = 0;
  return transfer(Entry::buffer_d2h, *object_of(buffer), CALD_TO_HOST, offset, dst, bytes, &moved,
                  error);
}

cald_status buffer_transfer(cald_transfer* what, cald_error* error) {
  if (what->buffer == nullptr)
    return Stub<Entry::buffer_transfer, cald_status (*)(cald_buffer*)>::null_handle(error);
  return transfer(Entry::buffer_transfer, *object_of(what->buffer), what->direction, what->offset,
                  what->host, what->bytes, &what->moved, error);
}

cald_status model_footprint(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_footprint* out,
                            cald_error* error) {
  Object& on = *object_of(device);
  Call call(*on.remote, Entry::model_footprint, error);
  if (const cald_status status = put_package(call, on, package, options); status != CALD_OK)
    return status;
  put(call.out(), out);
  if (!call.run()) return call.status();
  get(call.in(), on, out);
  return call.in().good() ? call.status() : call.nonsense();
}

cald_status model_load(cald_device* device, const cald_package* package,
                       const cald_load_options* options, cald_model** out, cald_error* error) {
  Object& on = *object_of(device);
  Call call(*on.remote, Entry::model_load, error);
  if (const cald_status status = put_package(call, on, package, options); status != CALD_OK)
    return status;
  const cald_load_options asked = whole(*options);
  call.out().pod(static_cast<uint8_t>(asked.progress != nullptr));
  // Also without somebody to tell: a load that goes on is not one that hangs.
  call.on_progress([&](uint64_t done, uint64_t total) {
    return asked.progress == nullptr || asked.progress(asked.user, done, total) == 0;
  });
  if (!call.run()) return call.status();
  get(call.in(), on, out);
  return call.in().good() ? call.status() : call.nonsense();
}

}  // namespace calrt::isolate::own
