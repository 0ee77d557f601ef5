// SPDX-License-Identifier: Apache-2.0
// ENTRY: the handshake, handles, and callers of another version.
#include <cstddef>

#include "conformance/player.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

CONFORMANCE_CHECK("ENTRY-01", "") {
  const cald_driver_table& table = kit.table();
  REQUIRE(table.abi_version >> 16 == CALD_ABI_MAJOR, "abi_version %#x: calrt's major is %d",
          table.abi_version, CALD_ABI_MAJOR);
  REQUIRE(table.struct_size % sizeof(void*) == 0, "struct_size %u is no whole number of entries",
          table.struct_size);
  REQUIRE(*table.name != '\0' && *table.version != '\0', "name or version is empty");
  REQUIRE(std::strlen(table.name) <= 64, "a name of %zu letters: 64 at most",
          std::strlen(table.name));
  const cald_driver_table* again = nullptr;
  REQUIRE(kit.entry()(&kit.host().table(), CALD_ABI_VERSION, &again) == CALD_OK && again != nullptr,
          "asked a second time, the entry gave no table");
}

CONFORMANCE_CHECK("ENTRY-02", "") {
  const auto* const marker = reinterpret_cast<const cald_driver_table*>(&kit);
  for (const uint32_t major : {CALD_ABI_MAJOR + 1u, CALD_ABI_MAJOR + 77u}) {
    const cald_driver_table* out = marker;
    const cald_status status = kit.entry()(&kit.host().table(), major << 16 | 9, &out);
    REQUIRE(status == CALD_VERSION_MISMATCH, "major %u was answered %d, not VERSION_MISMATCH (%d)",
            major, status, CALD_VERSION_MISMATCH);
    REQUIRE(out == marker, "major %u was refused, and *out was written", major);
  }
}

CONFORMANCE_CHECK("ENTRY-03", "") {
  const cald_driver_table& table = kit.table();
  table.driver_close(nullptr);
  table.device_close(nullptr);
  table.session_close(nullptr);
  table.buffer_free(nullptr);
  table.model_unload(nullptr);
  table.job_destroy(nullptr);
  if (CONFORMANCE_HAS(kit, binding_set_free)) table.binding_set_free(nullptr);
}

CONFORMANCE_CHECK("ENTRY-04", "") {
  cald_driver* first = kit.driver();
  Host other;
  cald_driver* second = nullptr;
  kit.ok("driver_open",
         [&](cald_error* err) { return kit.table().driver_open(&other.table(), &second, err); });
  REQUIRE(second != nullptr && second != first, "the second driver_open gave no driver of its own");
  uint32_t count = 0;
  kit.ok("device_count",
         [&](cald_error* err) { return kit.table().device_count(second, &count, err); });
  kit.table().driver_close(second);
  REQUIRE(other.live_blocks() == 0, "the second driver is closed and keeps %llu blocks of its host",
          static_cast<ull>(other.live_blocks()));
  kit.ok("device_count",
         [&](cald_error* err) { return kit.table().device_count(first, &count, err); });
}

// A struct of `known` bytes amid marks, as a caller of another version has it.
template <class T>
struct OtherVersion {
  alignas(T) uint8_t bytes[sizeof(T) + 64];
  uint32_t size;
  explicit OtherVersion(size_t as_large) : size(static_cast<uint32_t>(as_large)) {
    std::memset(bytes, 0x5A, sizeof bytes);
    std::memcpy(bytes, &size, sizeof size);
  }
  T* as() { return reinterpret_cast<T*>(bytes); }
  uint32_t struct_size() const {
    uint32_t now = 0;
    std::memcpy(&now, bytes, sizeof now);
    return now;
  }
  bool kept_from(size_t from) const {
    for (size_t i = from; i < sizeof bytes; ++i)
      if (bytes[i] != 0x5A) return false;
    return true;
  }
};

template <class T, class Call>
void shorter(Kit& kit, const char* entry, size_t known, Call&& fill) {
  OtherVersion<T> box(known);
  kit.ok(entry, [&](cald_error* err) { return fill(box.as(), err); });
  REQUIRE(box.kept_from(known), "%s wrote behind the %zu bytes of the struct it was given", entry,
          known);
  REQUIRE(box.struct_size() == known, "%s changed struct_size from %zu to %u", entry, known,
          box.struct_size());
}

CONFORMANCE_CHECK("ENTRY-05", "device_info") {
  cald_driver* driver = kit.driver();
  shorter<cald_device_info>(kit, "device_enumerate", offsetof(cald_device_info, id),
                            [&](cald_device_info* out, cald_error* err) {
                              return kit.table().device_enumerate(driver, kit.subject().index, out,
                                                                  err);
                            });
  cald_device* device = kit.device();
  shorter<cald_device_info>(kit, "device_info", offsetof(cald_device_info, id),
                            [&](cald_device_info* out, cald_error* err) {
                              return kit.table().device_info(device, out, err);
                            });
}

CONFORMANCE_CHECK("ENTRY-05", "error") {
  cald_driver* driver = kit.driver();
  OtherVersion<cald_error> box(offsetof(cald_error, flags));
  cald_device_options options = kit.device_options();
  options.index = 1u << 30;
  cald_device* made = nullptr;
  const cald_status status = kit.table().device_open(driver, &options, &made, box.as());
  if (made != nullptr) kit.table().device_close(made);
  REQUIRE(status != CALD_OK, "device_open opened device %u", options.index);
  REQUIRE(box.kept_from(offsetof(cald_error, flags)),
          "the error of ABI 0.1 was written behind its end");
  REQUIRE(box.as()->code == status, "the error of ABI 0.1 has code %d, the answer was %d",
          box.as()->code, status);
}

template <class T, class Call>
void longer(Kit& kit, const char* entry, Call&& fill) {
  OtherVersion<T> box(sizeof(T) + 32);
  kit.ok(entry, [&](cald_error* err) { return fill(box.as(), err); });
  REQUIRE(box.struct_size() == sizeof(T) + 32, "%s changed struct_size from %zu to %u", entry,
          sizeof(T) + 32, box.struct_size());
  REQUIRE(box.kept_from(sizeof(T)), "%s wrote fields that this driver cannot know", entry);
}

CONFORMANCE_CHECK("ENTRY-06", "device") {
  const cald_driver_table& table = kit.table();
  cald_device* device = kit.device();
  longer<cald_device_info>(kit, "device_info", [&](cald_device_info* out, cald_error* err) {
    return table.device_info(device, out, err);
  });
  if (CONFORMANCE_HAS(kit, device_topology))
    longer<cald_topology>(kit, "device_topology", [&](cald_topology* out, cald_error* err) {
      return table.device_topology(device, out, err);
    });
  if (CONFORMANCE_HAS(kit, device_health))
    longer<cald_health>(kit, "device_health", [&](cald_health* out, cald_error* err) {
      return table.device_health(device, out, err);
    });
  if (CONFORMANCE_HAS(kit, buffer_rules))
    longer<cald_buffer_rules>(kit, "buffer_rules", [&](cald_buffer_rules* out, cald_error* err) {
      return table.buffer_rules(device, kit.any_domain(), out, err);
    });
}

CONFORMANCE_CHECK("ENTRY-06", "model") {
  const cald_driver_table& table = kit.table();
  cald_model* model = kit.model();
  longer<cald_model_info>(kit, "model_info", [&](cald_model_info* out, cald_error* err) {
    return table.model_info(model, out, err);
  });
  if (CONFORMANCE_HAS(kit, kv_info))
    longer<cald_kv_info>(kit, "kv_info", [&](cald_kv_info* out, cald_error* err) {
      return table.kv_info(model, out, err);
    });
}

CONFORMANCE_CHECK("ENTRY-07", "host") {
  kit.close();
  Host host;
  cald_host older = host.table();
  older.struct_size = offsetof(cald_host, log_job);
  std::memset(static_cast<void*>(&older.log_job), 0x5A, sizeof older.log_job);
  cald_driver* driver = nullptr;
  kit.ok("driver_open",
         [&](cald_error* err) { return kit.table().driver_open(&older, &driver, err); });
  const DriverHandle closing({driver, &kit.table()});
  const cald_device_options options = kit.device_options();
  cald_device* device = nullptr;
  kit.ok("device_open",
         [&](cald_error* err) { return kit.table().device_open(driver, &options, &device, err); });
  kit.table().device_close(device);
}

CONFORMANCE_CHECK("ENTRY-07", "desc") {
  // What is behind an older desc is not a field: here it would be a set that there is not.
  GraphCall call(kit, 0);
  Player(kit).fill(call);
  Told* told = Told::make();
  cald_job_desc desc = call.desc({}, told);
  desc.struct_size = offsetof(cald_job_desc, set);
  std::memset(static_cast<void*>(&desc.set), 0x5A, sizeof desc.set);
  cald_session* session = kit.session();
  cald_job* made = nullptr;
  kit.ok("submit", [&](cald_error* err) { return kit.table().submit(session, &desc, &made, err); });
  Job(kit, made, told, 1).expect(CALD_JOB_DONE, "a job of an older caller");
}

CONFORMANCE_CHECK("ENTRY-08", "") {
  kit.close();
  Host handshake, kept;
  const cald_driver_table* table = nullptr;
  REQUIRE(kit.entry()(&handshake.table(), CALD_ABI_VERSION, &table) == CALD_OK,
          "the entry refused calrt's own version");
  const uint64_t calls = handshake.calls();
  cald_driver* driver = nullptr;
  kit.ok("driver_open",
         [&](cald_error* err) { return table->driver_open(&kept.table(), &driver, err); });
  const DriverHandle closing({driver, table});
  cald_device_options options = kit.device_options();
  cald_device* device = nullptr;
  kit.ok("device_open",
         [&](cald_error* err) { return table->device_open(driver, &options, &device, err); });
  table->device_close(device);
  REQUIRE(handshake.calls() == calls, "%llu calls of the handshake's host came after it",
          static_cast<ull>(handshake.calls() - calls));
}

CONFORMANCE_CHECK("ENTRY-09", "") {
  if (kit.subject().package != nullptr) kit.session(), kit.model();
  kit.driver();
  kit.close();
  REQUIRE(kit.host().damage().empty(), "%s", kit.host().damage().c_str());
  REQUIRE(kit.host().live_blocks() == 0, "all is closed, and %llu blocks of the host are not freed",
          static_cast<ull>(kit.host().live_blocks()));
}

}  // namespace
}  // namespace calrt::conformance
