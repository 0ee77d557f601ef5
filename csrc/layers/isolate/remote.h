// SPDX-License-Identifier: Apache-2.0
// One driver in one child process, as the parent sees it: its shared memory, its channels, its
// jobs, and the thread that watches over it. Thread-safe.
//
// Once it is lost - the process died, or an entry did not come back - it stays lost: every call
// answers DEVICE_LOST, every job has ended, and closing needs no child.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "calrt/driver.h"
#include "layers/isolate/arena.h"
#include "layers/isolate/channel.h"
#include "layers/isolate/child_process.h"
#include "layers/isolate/jobs.h"
#include "layers/isolate/patience.h"
#include "layers/isolate/ring.h"
#include "layers/isolate/vigil.h"
#include "layers/isolate/wire.h"
#include "layers/layer.h"

namespace calrt::isolate {

// What the child says of its driver's table.
struct Facts {
  std::string name, version;
  uint32_t abi_version = 0, struct_size = 0;
  uint64_t has = 0;  // one bit per entry, in order
  bool operator==(const Facts&) const = default;
};
static_assert(layers::kEntryCount <= 64);

class Remote : public std::enable_shared_from_this<Remote> {
 public:
  // Starts a child for `library`, a real path; nothing is loaded yet.
  static Result<std::shared_ptr<Remote>> start(const std::string& library);
  // Has it load the library and call its entry: *answered is what the entry answered, and what it
  // gave is returned if that was OK.
  Result<Facts> load(uint32_t abi_requested, cald_status* answered);
  ~Remote();

  // From now on log lines and trace events go to `host`, until finish().
  void lend(const cald_host* host) { host_.store(host); }
  // The driver is closed, or lost: the child is told to end, and made to if it does not.
  void finish();

  const std::string& library() const { return library_; }
  Jobs& jobs() { return jobs_; }
  Strings& strings() { return strings_; }
  Arena& staging() { return staging_; }
  const SharedMemory& memory() const { return memory_; }
  int socket() const { return socket_.get(); }
  std::mutex& socket_mutex() { return socket_mutex_; }

  Patience patience() const { return {entry_ns_.load(), job_ns_.load()}; }
  void set_patience(const Patience& patience) {
    entry_ns_.store(patience.entry_ns);
    job_ns_.store(patience.job_ns);
  }
  // A job has been accepted: from now on it is looked at whether jobs end.
  void watch_jobs() {
    if (rests_.load() && rests_.exchange(false)) signal_eventfd(watch_event_.get());
  }
  void load_progressed() { progress_.fetch_add(1); }

  bool lost() const { return lost_.load(); }
  std::string why();  // it was lost
  // The child is killed, if it lives, and all that waits for it is woken.
  void lose(const std::string& why);
  void log(int32_t level, uint64_t job_seq, const char* component, const char* text);

  // What the child has told before `position` of its ring has been taken; not without end.
  void wait_taken(uint64_t position);

  // Destroyed jobs that the child still has; they go along with the next submit.
  void release(uint64_t token);
  std::vector<uint64_t> take_released();
  void released();  // those that were taken last have arrived
  // All of them, now: before anything is closed that they may belong to.
  void flush_released();

 private:
  friend class Call;
  explicit Remote(const std::string& library, SharedMemory memory);
  Result<void> make_channels();
  Result<void> send_descriptors();
  // -1: none came free by the deadline, or all is lost.
  int take_channel(uint64_t deadline_ns, const char* what);
  void give_back(int channel);
  std::string in_flight();  // names of entries

  // The watching thread.
  void watch(const std::string& program);
  void take_records();
  void take_output();
  bool take(Record kind, std::string_view record);
  int until_look_ms();  // -1: there is nothing to look at
  void look();

  const std::string library_;
  SharedMemory memory_;
  Arena staging_;
  Fd socket_, child_socket_, ring_event_, pulse_event_, watch_event_;
  std::mutex socket_mutex_;
  Fd events_[kChannels][2];
  Channel channels_[kChannels];
  RingReader ring_;
  ChildProcess child_;
  Jobs jobs_;
  Strings strings_;
  std::string driver_name_;  // as far as it is known: its library's
  std::atomic<const cald_host*> host_{nullptr};
  std::atomic<uint64_t> entry_ns_, job_ns_;
  std::atomic<uint64_t> progress_{0};  // signs of life of loads
  std::atomic<bool> rests_{false};     // the watching thread looks at nothing

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> idle_;             // channels
  const char* busy_[kChannels] = {};  // what each is used for
  std::vector<uint64_t> released_;
  int releasing_ = 0;
  bool started_ = false, gone_ = false;  // the process
  Result<void> start_failed_;
  bool finishing_ = false;
  std::string why_;
  std::atomic<bool> lost_{false};

  // Of the watching thread:
  Vigil vigil_;
  uint64_t next_look_ns_ = 0, last_accepted_ = 0, asked_ = 0;
  std::string output_line_;
  size_t output_bytes_ = 0;
  std::thread watcher_;
};

}  // namespace calrt::isolate
