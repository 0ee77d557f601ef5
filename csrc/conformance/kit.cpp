// SPDX-License-Identifier: Apache-2.0
#include "conformance/kit.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "calrt/driver_host.h"
#include "calrt/driver_library.h"
#include "calrt/model.h"

namespace calrt::conformance {

LoadAsk::LoadAsk(const ResolvedLoad& resolved) : asked(resolved) {
  options.struct_size = sizeof options;
  options.lanes = asked.lanes;
  options.cells = asked.cells;
  options.compute = asked.compute;
  options.kv_dtype = asked.kv_dtype;
  options.logits_dtype = asked.logits_dtype;
  options.parallel = asked.parallel.c_str();
  options.placement = asked.placement.c_str();
  options.n_profiles = static_cast<uint32_t>(asked.profiles.size());
  options.profiles = asked.profiles.data();
  options.n_chunks = static_cast<uint32_t>(asked.chunks.size());
  options.chunks = asked.chunks.data();
}

std::string Kit::open(Subject subject, std::unique_ptr<Kit>* out) {
  const auto entry = load_entry(subject.library, subject.isolated);
  if (!entry.ok()) return entry.error().message;
  std::unique_ptr<Kit> kit(new Kit);
  kit->entry_ = *entry;
  kit->subject_ = std::move(subject);
  for (const auto& [key, value] : kit->subject_.options)
    kit->option_list_.push_back({key.c_str(), value.c_str()});
  *out = std::move(kit);
  return (*out)->shake_hands();
}

std::string Kit::shake_hands() {
  cald_status status = CALD_OK;
  try {
    status = entry_(&host_->table(), CALD_ABI_VERSION, &table_);
  } catch (...) {
    return "its entry threw a C++ exception";
  }
  if (status != CALD_OK)
    return "its entry answered " + std::to_string(status) + " to calrt's own version";
  if (table_ == nullptr) return "its entry answered OK and gave no table";
  if (table_->struct_size < offsetof(cald_driver_table, device_topology))
    return "its table is of " + std::to_string(table_->struct_size) + " bytes, ABI 0.1 has " +
           std::to_string(offsetof(cald_driver_table, device_topology));
  if (table_->abi_version >> 16 != CALD_ABI_MAJOR)
    return "its table is of ABI major " + std::to_string(table_->abi_version >> 16) +
           ", and its entry took " + std::to_string(CALD_ABI_MAJOR) + " for it";
  if (table_->name == nullptr || table_->version == nullptr)
    return "its table has no name, or no version";
#define CALD_ENTRY(entry, need, minor, cls) \
  if (#need[0] == 'R' && table_->entry == nullptr) return "its table has no " #entry;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  return {};
}

Kit::~Kit() { close(); }

void Kit::known(const char* driver, const char* device, const char* why) {
  if (std::strcmp(table().name, driver) != 0) return;
  if (*device != '\0' && std::strcmp(info().device_class, device) != 0) return;
  known_ = why;
}

void Kit::check_answer(const char* entry, cald_status status, const cald_error& error) {
  if (status < 0 || status > 29)
    broken_rule("ERR-01", "%s answered %d: calrt's statuses are 0 to 29", entry, status);
  message_.clear();
  if (status == CALD_OK) return;
  if (error.struct_size != sizeof error)
    broken_rule("ERR-03", "%s changed the error's struct_size to %u", entry, error.struct_size);
  if (error.code != status)
    broken_rule("ERR-02", "%s answered %d and put %d into the error", entry, status, error.code);
  if (std::memchr(error.message, '\0', sizeof error.message) == nullptr)
    broken_rule("ERR-02", "%s: the error's message has no end", entry);
  if (std::memchr(error.where, '\0', sizeof error.where) == nullptr)
    broken_rule("ERR-02", "%s: the error's `where` has no end", entry);
  if (error.message[0] == '\0')
    broken_rule("ERR-02", "%s answered %d without a word why", entry, status);
  message_ = error.message;
}

cald_device_options Kit::device_options() {
  cald_device_options options{};
  options.struct_size = sizeof options;
  options.index = subject_.index;
  options.config = subject_.config.c_str();
  options.n_options = static_cast<uint32_t>(option_list_.size());
  options.options = option_list_.data();
  return options;
}

cald_driver* Kit::driver() {
  if (!driver_) {
    cald_driver* made = nullptr;
    ok("driver_open",
       [&](cald_error* err) { return table().driver_open(&host_->table(), &made, err); });
    REQUIRE(made != nullptr, "driver_open answered OK and gave no handle");
    driver_ = DriverHandle({made, table_});
  }
  return driver_.get().pointer;
}

cald_status Kit::open_device(const cald_device_options& options, cald_device** out) {
  cald_driver* on = driver();
  return call("device_open",
              [&](cald_error* err) { return table().device_open(on, &options, out, err); });
}

cald_device* Kit::device() {
  if (!device_) {
    cald_device* made = nullptr;
    const cald_status status = open_device(device_options(), &made);
    if (status != CALD_OK) broken("device_open answered %d: %s", status, message_.c_str());
    REQUIRE(made != nullptr, "device_open answered OK and gave no handle");
    device_ = own_device(made);
    info_ = {};
    info_.struct_size = sizeof info_;
    ok("device_info", [&](cald_error* err) { return table().device_info(made, &info_, err); });
    virtual_now_ = due_ns_ = 0;
  }
  return device_.get().pointer;
}

const cald_device_info& Kit::info() {
  device();
  return info_;
}

cald_session* Kit::session() {
  cald_device* on = device();
  if (!session_) {
    cald_session* made = nullptr;
    ok("session_open", [&](cald_error* err) { return table().session_open(on, 0, &made, err); });
    REQUIRE(made != nullptr, "session_open answered OK and gave no handle");
    session_ = SessionHandle({made, table_});
  }
  return session_.get().pointer;
}

// Several lanes, so that they can be mixed up; few cells, so that a check is short.
void Kit::resolve_load() {
  if (subject_.package == nullptr) skip("needs a package (--package DIR)");
  if (ask_ != nullptr) return;
  const Package& package = *subject_.package;
  LoadRequest request;
  for (const uint32_t lanes : {4u, 3u, 2u, 1u}) {
    request.lanes = lanes;
    if (package.resolve(request).ok()) break;
    request.lanes.reset();
  }
  for (const uint32_t cells : {256u, 128u, 512u, 1024u}) {
    request.cells = cells;
    if (package.resolve(request).ok()) break;
    request.cells.reset();
  }
  auto resolved = package.resolve(request);
  if (!resolved.ok()) skip("the package cannot be resolved: %s", resolved.error().message.c_str());
  ask_ = std::make_unique<LoadAsk>(*resolved);
}

const ResolvedLoad& Kit::asked() {
  resolve_load();
  return ask_->asked;
}

ModelHandle Kit::load(const cald_load_options& options) {
  cald_device* on = device();
  const cald_package& package = subject_.package->typed();
  cald_model* made = nullptr;
  ok("model_load",
     [&](cald_error* err) { return table().model_load(on, &package, &options, &made, err); });
  REQUIRE(made != nullptr, "model_load answered OK and gave no handle");
  return ModelHandle({made, table_});
}

cald_model* Kit::model() {
  resolve_load();
  device();
  if (!model_) {
    model_ = load(ask_->options);
    model_info_ = {};
    model_info_.struct_size = sizeof model_info_;
    ok("model_info", [&](cald_error* err) {
      return table().model_info(model_.get().pointer, &model_info_, err);
    });
    REQUIRE(model_info_.n_graphs > 0 && model_info_.graphs != nullptr,
            "model_info names no graphs");
  }
  return model_.get().pointer;
}

const cald_model_info& Kit::model_info() {
  model();
  return model_info_;
}

void Kit::close_session() { session_.reset(); }
void Kit::close_model() {
  close_session();
  model_.reset();
}
void Kit::close_device() {
  close_model();
  device_.reset();
}
void Kit::close() {
  close_device();
  driver_.reset();
}

uint32_t Kit::any_domain() {
  const uint32_t stated = info().domains;
  return stated == 0 ? static_cast<uint32_t>(CALD_DOMAIN_HOST) : stated & (~stated + 1);
}

cald_buffer_rules Kit::rules_of(uint32_t domain) {
  cald_device* on = device();
  cald_buffer_rules rules{};
  rules.struct_size = sizeof rules;
  const bool none = !CONFORMANCE_HAS((*this), buffer_rules) ||
                    table().buffer_rules(on, domain, &rules, nullptr) != CALD_OK;
  if (none || rules.padding == 0) rules.padding = 1;  // BUF-03 looks at what they say
  if (none) rules.align = 64;
  return rules;
}

uint64_t Kit::padded(uint32_t domain, uint64_t bytes) {
  const uint64_t padding = rules_of(domain).padding;
  return (bytes + padding - 1) / padding * padding;
}

uint64_t Kit::aligned(uint32_t domain, uint64_t align) {
  return std::max(align, rules_of(domain).align);
}

uint64_t Kit::now_ns() { return virtual_clock() ? virtual_now_ : monotonic_ns(); }

uint64_t Kit::poll(uint64_t at_ns) {
  cald_session* on = session();
  uint64_t next = 0;
  virtual_now_ = std::max(virtual_now_, at_ns);
  const cald_status status =
      call("poll", [&](cald_error* err) { return table().poll(on, at_ns, &next, err); });
  if (status != CALD_OK) broken_rule("POLL-01", "poll answered %d: %s", status, message_.c_str());
  due_ns_ = next == CALD_NO_DEADLINE ? at_ns + 1000 : std::max(next, at_ns + 1);
  return next;
}

void Kit::turn() {
  if (!polled()) return;
  if (virtual_clock()) {
    poll(std::max(due_ns_, virtual_now_));
    return;
  }
  const uint64_t now = now_ns(), next = poll(now);
  usleep(
      static_cast<useconds_t>(std::clamp<uint64_t>((std::max(next, now) - now) / 1000, 20, 1000)));
}

}  // namespace calrt::conformance
