// SPDX-License-Identifier: Apache-2.0
// calrt-isolate: loads one driver library and calls its entries as the parent asks. One thread per
// channel, so that an entry that does not return holds up nobody else.
//
// It trusts the parent, which has started it, and the driver as far as any driver is trusted. It
// ends with the parent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "calrt/driver.h"
#include "layers/isolate/arena.h"
#include "layers/isolate/channel.h"
#include "layers/isolate/ring.h"
#include "layers/isolate/wire_structs.h"
#include "layers/layer.h"

namespace calrt::isolate {

// The driver's handles by the numbers that the parent knows. Thread-safe.
class Handles {
 public:
  uint64_t add(void* handle);        // 0 for NULL
  void* find(uint64_t token) const;  // NULL for 0 and for what there is not
  void forget(uint64_t token);
  // Jobs have numbers of the parent's.
  void add_job(uint64_t token, cald_job* job);
  cald_job* find_job(uint64_t token) const;
  void forget_job(uint64_t token);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, void*> handles_;
  std::unordered_map<uint64_t, cald_job*> jobs_;
  uint64_t last_ = 0;
};

// A job's end as the driver told it.
struct Told {
  uint64_t token;
  cald_completion completion;
};

class JobWaiter;

struct Program {
  SharedMemory memory;
  Arena arena;
  RingWriter ring;
  Handles handles;
  cald_host host{};
  std::string library;
  const cald_driver_table* table = nullptr;  // with the layers that the environment names
  std::unique_ptr<layers::LayeredTable> layered;

  // Descriptors that have come and not been asked for, by parcel.
  std::mutex parcels_mutex;
  std::condition_variable parcels_came;
  std::map<uint64_t, std::vector<int>> parcels;
  std::mutex models_mutex;
  std::map<uint64_t, std::vector<int>> model_fds;  // by model: open as long as it is loaded
  std::mutex waiters_mutex;
  std::map<uint64_t, std::unique_ptr<JobWaiter>> waiters;  // by session, where the device calls
                                                           // back nobody

  Program(SharedMemory shared, int ring_event);
  std::vector<int> take_parcel(uint64_t tag);
  // The entry, or null where the driver has none.
  template <auto Member>
  auto entry() const {
    const auto end = reinterpret_cast<const char*>(&(table->*Member) + 1);
    const bool there = end - reinterpret_cast<const char*>(table) <= table->struct_size;
    return there ? table->*Member : nullptr;
  }
};

// One request, as its channel's thread works on it.
struct Request {
  Program& program;
  Channel& channel;
  Reader in;
  Writer& out;
  bool wants_error = false;
};

// Ends that are told on this thread meanwhile go along with the reply; null: into the ring.
extern thread_local std::vector<Told>* told_inside;
// on_complete of every job; `user` is its token.
void on_complete(void* user, const cald_completion* completion);

void make_host(Program& program);  // program.host, and the log of libcalrt
// Serves a channel until the process ends.
void serve_channel(Program& program, Channel channel);
// Forgets jobs, once the driver is through with them.
void release(Program& program, Reader& in);

// The functions that serve the entries, in order: they read the arguments, call, and write what
// came of it.
using Serve = cald_status (*)(Request& request, cald_error* error);
extern const Serve kServe[layers::kEntryCount];

}  // namespace calrt::isolate
