// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/remote.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "layers/isolate/call.h"
#include "layers/isolate/descriptors.h"

namespace calrt::isolate {
namespace {

constexpr auto kEndPatience = std::chrono::seconds(2);  // from "end" to SIGKILL, and from there on

// "mock" of "/a/libcald_mock.so".
std::string name_of(const std::string& library) {
  constexpr std::string_view kPrefix = "libcald_";
  std::string name = library.substr(library.rfind('/') + 1);
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  return name.substr(0, name.find('.'));
}

}  // namespace

Remote::Remote(const std::string& library, SharedMemory memory)
    : library_(library),
      memory_(std::move(memory)),
      staging_(memory_.staging(), memory_.staging_bytes()),
      ring_(&memory_.control().ring, memory_.ring()),
      driver_name_(name_of(library)) {}

Remote::~Remote() = default;

Result<void> Remote::make_channels() {
  ring_event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  pulse_event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  watch_event_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool made = ring_event_ && pulse_event_ && watch_event_;
  for (uint32_t i = 0; i < kChannels; ++i) {
    events_[i][static_cast<int>(Turn::PARENT)] = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    events_[i][static_cast<int>(Turn::CHILD)] = Fd(eventfd(0, EFD_CLOEXEC));
    made = made && events_[i][0] && events_[i][1];
    channels_[i] = Channel(&memory_.control().channels[i], memory_.message(i),
                           {events_[i][0].get(), events_[i][1].get()});
    idle_.insert(idle_.begin(), static_cast<int>(i));
  }
  int ends[2] = {-1, -1};
  made = made && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
  if (!made)
    return fail(Status::OUT_OF_HOST_MEMORY,
                "isolate: no descriptors for another process: %s; one takes about 30 (ulimit -n)",
                std::strerror(errno));
  socket_ = Fd(ends[0]);
  child_socket_ = Fd(ends[1]);
  return {};
}

Result<void> Remote::send_descriptors() {
  std::vector<int> all{memory_.fd(), ring_event_.get(), pulse_event_.get()};
  for (const auto& pair : events_) all.insert(all.end(), {pair[0].get(), pair[1].get()});
  return send_fds(socket_.get(), 0, all);
}

Result<std::shared_ptr<Remote>> Remote::start(const std::string& library) {
  CALRT_TRY_ASSIGN(const Patience patience, Patience::usual());
  CALRT_TRY_ASSIGN(const std::string program, find_program());
  CALRT_TRY_ASSIGN(SharedMemory memory, SharedMemory::create());
  std::shared_ptr<Remote> inner(new Remote(library, std::move(memory)));
  inner->set_patience(patience);
  CALRT_TRY(inner->make_channels());
  CALRT_TRY(inner->send_descriptors());
  // Who holds the watched one closes it; the watching thread holds it until the process is gone.
  std::shared_ptr<Remote> remote(inner.get(), [inner](Remote* closed) { closed->finish(); });
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    inner->watcher_ = std::thread([inner, program] { inner->watch(program); });
  } catch (const std::exception& failed) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return fail(Status::OUT_OF_HOST_MEMORY, "isolate: a thread cannot start: %s", failed.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(inner->mutex_);
  inner->changed_.wait(lock, [&] { return inner->started_ || inner->gone_; });
  if (!inner->start_failed_.ok()) return inner->start_failed_.error();
  return remote;
}

Result<Facts> Remote::load(uint32_t abi_requested, cald_status* answered) {
  cald_error error{};
  error.struct_size = sizeof error;
  Call call(*this, Kind::LOAD, "loading its library", &error);
  call.out().text(library_.c_str());
  call.out().pod(abi_requested);
  if (!call.run() || call.status() != CALD_OK) {
    return Error{static_cast<Status>(call.status()), error.native_code, error.message,
                 "driver_entry"};
  }
  Reader& in = call.in();
  Facts facts;
  const char *name = nullptr, *version = nullptr;
  in.pod(*answered);
  in.text(name);
  in.text(version);
  in.pod(facts.abi_version);
  in.pod(facts.struct_size);
  in.pod(facts.has);
  if (!in.good()) {
    (void)call.nonsense();
    return Error{Status::DEVICE_LOST, 0, why(), "driver_entry"};
  }
  facts.name = name != nullptr ? name : "";
  facts.version = version != nullptr ? version : "";
  const std::scoped_lock lock(mutex_);
  if (!facts.name.empty()) driver_name_ = facts.name;
  return facts;
}

void Remote::finish() {
  std::unique_lock lock(mutex_);
  finishing_ = true;
  lock.unlock();
  ::shutdown(socket_.get(), SHUT_RDWR);  // the child ends at this
  lock.lock();
  if (!changed_.wait_for(lock, kEndPatience, [this] { return gone_; })) {
    child_.kill();
    (void)changed_.wait_for(lock, kEndPatience, [this] { return gone_; });
  }
  const bool gone = gone_;
  host_.store(nullptr);
  lock.unlock();
  if (!watcher_.joinable()) return;
  // A process that even SIGKILL does not end sits in the kernel: it is left to its watching thread.
  if (gone && watcher_.get_id() != std::this_thread::get_id())
    watcher_.join();
  else
    watcher_.detach();
}

// ---- channels -----------------------------------------------------------------------------------

int Remote::take_channel(uint64_t deadline_ns, const char* what) {
  const std::chrono::steady_clock::time_point until{
      std::chrono::nanoseconds(static_cast<int64_t>(std::min<uint64_t>(deadline_ns, INT64_MAX)))};
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return lost() || !idle_.empty(); }) || lost())
    return -1;
  const int channel = idle_.back();  // the last one that was used: its thread may still look
  idle_.pop_back();
  busy_[channel] = what;
  return channel;
}

void Remote::give_back(int channel) {
  const std::scoped_lock lock(mutex_);
  busy_[channel] = nullptr;
  idle_.push_back(channel);
  if (idle_.size() == 1) changed_.notify_all();
}

std::string Remote::in_flight() {
  std::string text;
  for (const char* what : busy_)
    if (what != nullptr) text += (text.empty() ? " while in " : ", ") + std::string(what);
  return text;
}

// ---- loss ---------------------------------------------------------------------------------------

std::string Remote::why() {
  const std::scoped_lock lock(mutex_);
  return why_;
}

void Remote::lose(const std::string& what) {
  std::string why;
  {
    const std::scoped_lock lock(mutex_);
    if (lost()) return;
    why_ = why = "the process of driver " + driver_name_ + " " + what + in_flight() +
                 "; open the device again";
    lost_.store(true);
    changed_.notify_all();
  }
  child_.kill();
  for (Channel& channel : channels_) channel.wake_parent();
  signal_eventfd(watch_event_.get());
  log(CALD_LOG_ERROR, 0, "isolate", why.c_str());
}

void Remote::log(int32_t level, uint64_t job_seq, const char* component, const char* text) {
  const cald_host* host = host_.load();
  if (host == nullptr) return;
  constexpr size_t kWithJobs = offsetof(cald_host, log_job) + sizeof host->log_job;
  if (job_seq != 0 && host->struct_size >= kWithJobs && host->log_job != nullptr)
    host->log_job(host->user, level, job_seq, component, text);
  else
    host->log(host->user, level, component, text);
}

// ---- destroyed jobs -----------------------------------------------------------------------------

void Remote::release(uint64_t token) {
  constexpr size_t kMost = 64;
  bool many = false;
  {
    const std::scoped_lock lock(mutex_);
    released_.push_back(token);
    many = released_.size() >= kMost;
  }
  if (many) flush_released();
}

std::vector<uint64_t> Remote::take_released() {
  const std::scoped_lock lock(mutex_);
  ++releasing_;
  return std::exchange(released_, {});
}

void Remote::released() {
  const std::scoped_lock lock(mutex_);
  --releasing_;
  changed_.notify_all();
}

void Remote::flush_released() {
  const std::vector<uint64_t> tokens = take_released();
  if (!tokens.empty()) {
    Call call(*this, Kind::RELEASE, "job_destroy", nullptr);
    call.out().array(static_cast<uint32_t>(tokens.size()), tokens.data());
    (void)call.run();
  }
  released();
  // Another thread's may be on their way: no longer than its own call.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return releasing_ == 0 || lost(); });
}

void Remote::wait_taken(uint64_t position) {
  // A position that the ring has no room for is no position.
  const uint64_t left = position - ring_.position();
  if (left == 0 || left > kRingBytes) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kEndPatience,
                    [&] { return lost() || ring_.position() >= position || gone_; });
}

}  // namespace calrt::isolate
