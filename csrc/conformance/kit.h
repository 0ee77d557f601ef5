// SPDX-License-Identifier: Apache-2.0
// What a check works with: the driver's bare table, and one device, session and model that are
// opened when first asked for and live until a check fails or asks for fresh ones. One thread.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calrt/driver.h"
#include "calrt/driver_handle.h"
#include "calrt/package.h"
#include "conformance/check.h"
#include "conformance/host.h"

namespace calrt::conformance {

struct Subject {          // what is tested, from the command line
  std::string library;    // path
  bool isolated = false;  // in a process of its own
  std::string config;     // what followed ':' and was no number
  uint32_t index = 0;
  std::vector<std::pair<std::string, std::string>> options;
  std::shared_ptr<const Package> package;  // null: what needs a model is skipped
};

// A load's options, with the lists they point to. Stays where it was made.
struct LoadAsk {
  ResolvedLoad asked;
  cald_load_options options{};
  LoadAsk(const ResolvedLoad& resolved);
  LoadAsk(const LoadAsk&) = delete;
  LoadAsk& operator=(const LoadAsk&) = delete;
};

class Kit {
 public:
  // Loads the library and makes the handshake. A text if there is no driver in it (`out` is null
  // then), or if its table is such that nothing more can be tested: that breaks ENTRY-01.
  static std::string open(Subject subject, std::unique_ptr<Kit>* out);
  ~Kit();
  Kit(const Kit&) = delete;
  Kit& operator=(const Kit&) = delete;

  const Subject& subject() const { return subject_; }
  const cald_driver_table& table() const { return *table_; }
  cald_driver_entry_fn entry() const { return entry_; }
  Host& host() { return *host_; }

  // Says of the running check that this driver fails it, and why: a failure is then expected, and
  // a pass is one. `device` is a device class; "" = all of the driver's.
  void known(const char* driver, const char* device, const char* why);
  const std::string& known_why() const { return known_; }
  void forget_known() { known_.clear(); }

  // Runs an entry with an error of its own and holds the answer to the rules of ERR.
  template <class Call>
  cald_status call(const char* entry, Call&& call);
  // The same; anything but OK breaks the running check's rule.
  template <class Call>
  void ok(const char* entry, Call&& call);
  // The same; OK breaks it, and so does a class of status that is not for this.
  template <class Call>
  cald_status refused(const char* what, const char* entry, Call&& call);
  const std::string& message() const { return message_; }  // of the last refusal

  // Opened when first asked for.
  cald_driver* driver();
  cald_device* device();
  cald_session* session();
  const cald_device_info& info();  // of the device
  cald_model* model();             // skips the check without a package
  const cald_model_info& model_info();
  const ResolvedLoad& asked();  // what the model was loaded with
  // Everything, children first.
  void close();
  void close_device();
  void close_session();
  void close_model();

  // A device opened beside the shared one, with these options in place of the subject's.
  cald_status open_device(const cald_device_options& options, cald_device** out);
  cald_device_options device_options();
  DeviceHandle own_device(cald_device* made) { return DeviceHandle({made, table_}); }
  ModelHandle load(const cald_load_options& options);

  // A memory domain that the device states, host memory if it does not say.
  uint32_t any_domain();
  // Size and alignment as calrt asks for them: by the rules of the domain, where there are any.
  uint64_t padded(uint32_t domain, uint64_t bytes);
  uint64_t aligned(uint32_t domain, uint64_t align);

  bool calls_back() { return info().completion != CALD_COMPLETION_WAIT; }
  bool polled() { return info().completion == CALD_COMPLETION_POLL; }
  bool virtual_clock() { return polled() && info().clock == CALD_CLOCK_VIRTUAL; }
  // The device's clock: the one of deadlines.
  uint64_t now_ns();
  // Gives a polled device a turn; virtual time moves to where it wants to be polled, or by 1 us.
  void turn();
  // Returns when it wants to be polled next.
  uint64_t poll(uint64_t at_ns);

 private:
  Kit() = default;
  std::string shake_hands();
  cald_buffer_rules rules_of(uint32_t domain);
  void check_answer(const char* entry, cald_status status, const cald_error& error);
  void resolve_load();

  Subject subject_;
  std::unique_ptr<Host> host_ = std::make_unique<Host>();
  cald_driver_entry_fn entry_ = nullptr;
  const cald_driver_table* table_ = nullptr;
  std::string known_, message_;
  std::vector<cald_option> option_list_;
  std::unique_ptr<LoadAsk> ask_;
  // Children after parents.
  DriverHandle driver_;
  DeviceHandle device_;
  cald_device_info info_{};
  ModelHandle model_;
  cald_model_info model_info_{};
  SessionHandle session_;
  uint64_t virtual_now_ = 0;  // where the last poll stood
  uint64_t due_ns_ = 0;       // when the device wants the next one
};

template <class Call>
cald_status Kit::call(const char* entry, Call&& call) {
  struct {  // what follows the error must stay as it is
    cald_error error;
    uint8_t guard[32];
  } box;
  std::memset(static_cast<void*>(&box), 0x5A, sizeof box);
  box.error.struct_size = sizeof box.error;
  box.error.flags = 0;
  const cald_status status = call(&box.error);
  for (const uint8_t byte : box.guard)
    if (byte != 0x5A) broken_rule("ERR-03", "%s wrote behind the cald_error it was given", entry);
  check_answer(entry, status, box.error);
  return status;
}

template <class Call>
void Kit::ok(const char* entry, Call&& call) {
  const cald_status status = this->call(entry, std::forward<Call>(call));
  if (status != CALD_OK) broken("%s answered %d: %s", entry, status, message_.c_str());
}

template <class Call>
cald_status Kit::refused(const char* what, const char* entry, Call&& call) {
  const cald_status status = this->call(entry, std::forward<Call>(call));
  if (status == CALD_OK) broken("%s accepted %s", entry, what);
  return status;
}

// The entry, or null where the table is too old or has none.
#define CONFORMANCE_HAS(kit, entry)                                                             \
  (offsetof(cald_driver_table, entry) + sizeof(kit.table().entry) <= kit.table().struct_size && \
   kit.table().entry != nullptr)
#define NEEDS_ENTRY(kit, entry) \
  if (!CONFORMANCE_HAS(kit, entry)) ::calrt::conformance::skip("the driver has no " #entry)

}  // namespace calrt::conformance
