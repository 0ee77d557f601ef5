// SPDX-License-Identifier: Apache-2.0
// A channel's thread: one request after another. And the library's loading, which is the first.
#include <cstdio>
#include <cstdlib>

#include "calrt/driver_library.h"
#include "isolate/served_own.h"
#include "layers/abi_version.h"

namespace calrt::isolate {
namespace {

using layers::Entry;

// Entries with a function of their own; the others follow from their signatures.
template <Entry E>
inline constexpr std::nullptr_t kOwn = nullptr;
#define CALRT_OWN(entry) \
  template <>            \
  inline constexpr auto kOwn<Entry::entry> = &served::entry
CALRT_OWN(driver_open);
CALRT_OWN(device_caps);
CALRT_OWN(device_counters);
CALRT_OWN(trace_drain);
CALRT_OWN(session_open);
CALRT_OWN(session_close);
CALRT_OWN(buffer_map);
CALRT_OWN(buffer_h2d);
CALRT_OWN(buffer_d2h);
CALRT_OWN(buffer_transfer);
CALRT_OWN(model_footprint);
CALRT_OWN(model_load);
CALRT_OWN(model_unload);
CALRT_OWN(binding_set_make);
CALRT_OWN(submit);
CALRT_OWN(kv_submit);
CALRT_OWN(job_query);
CALRT_OWN(job_wait);
CALRT_OWN(job_cancel);
CALRT_OWN(job_timing);
CALRT_OWN(job_destroy);
#undef CALRT_OWN

template <Entry E, auto Member, class F>
constexpr Serve serve_of() {
  if constexpr (!std::is_same_v<decltype(kOwn<E>), const std::nullptr_t>)
    return kOwn<E>;
  else
    return &Served<Member, F>::serve;
}

// Loads the library, calls its entry, and says what came of it.
cald_status load(Request& r, cald_error* error) {
  const char* path = nullptr;
  r.in.text(path);
  const auto abi = r.in.get<uint32_t>();
  if (!r.in.good() || path == nullptr) return refuse_malformed(error);
  const auto refused = [&](const Error& failed) {
    error->native_code = failed.native_code;
    return refuse(error, static_cast<cald_status>(failed.code), "driver_entry",
                  failed.message.c_str());
  };
  const auto entry = load_entry(path);
  if (!entry.ok()) return refused(entry.error());
  const cald_driver_table* table = nullptr;
  const auto ask = [&](uint32_t version) { return (*entry)(&r.program.host, version, &table); };
  const cald_status answered = abi == CALD_ABI_VERSION ? ask_entry(ask) : ask(abi);
  if (answered != CALD_OK) table = nullptr;
  constexpr size_t kHead = offsetof(cald_driver_table, driver_open);
  const bool known = table != nullptr && table->struct_size >= kHead;
  uint64_t has = 0;
  r.program.table = table;
#define CALD_ENTRY(name, need, minor, cls)                             \
  if (known && r.program.entry<&cald_driver_table::name>() != nullptr) \
    has |= uint64_t{1} << static_cast<int>(Entry::name);
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  r.out.pod(answered);
  r.out.text(known ? table->name : nullptr);
  r.out.text(known ? table->version : nullptr);
  r.out.pod(table != nullptr && table->struct_size >= 8 ? table->abi_version : 0u);
  r.out.pod(table != nullptr ? table->struct_size : 0u);
  r.out.pod(has);
  const char* spec = std::getenv("CALRT_ISOLATE_LAYERS");
  if (!known || spec == nullptr || *spec == '\0') return CALD_OK;
  auto made = layers::make_layers(spec);
  if (!made.ok()) return refused(made.error());
  auto layered = layers::LayeredTable::make(*table, std::move(*made));
  if (!layered.ok()) return refused(layered.error());
  r.program.layered = std::move(*layered);
  r.program.table = &r.program.layered->table();
  return CALD_OK;
}

cald_status serve_entry(Request& r, cald_error* error) {
  const auto entry = r.in.get<uint32_t>();
  const bool wants_error = r.in.get<uint8_t>() != 0;
  if (!r.in.good() || entry >= layers::kEntryCount || r.program.table == nullptr)
    return refuse_malformed(error);
  const char* name = layers::entry_name(static_cast<Entry>(entry));
  try {
    return kServe[entry](r, wants_error ? error : nullptr);
  } catch (...) {
    // Said as the runtime says it of a driver in its own process.
    const cald_status status =
        refuse(error, CALD_INTERNAL, name, "the driver threw a C++ exception across the ABI");
    r.program.host.log(&r.program, CALD_LOG_ERROR, name, error->message);
    return status;
  }
}

cald_status serve(Request& r, cald_error* error) {
  switch (r.channel.kind()) {
    case Kind::ENTRY:
      return serve_entry(r, error);
    case Kind::LOAD:
      return load(r, error);
    case Kind::RELEASE:
      release(r.program, r.in);
      return CALD_OK;
    default:
      return refuse_malformed(error);
  }
}

}  // namespace

const Serve kServe[layers::kEntryCount] = {
#define CALD_ENTRY(name, need, minor, cls)        \
  serve_of<Entry::name, &cald_driver_table::name, \
           decltype(std::declval<cald_driver_table>().name)>(),
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};

cald_status refuse(cald_error* error, cald_status status, const char* where, const char* text) {
  if (error == nullptr) return status;
  error->code = status;
  std::snprintf(error->message, sizeof error->message, "%s", text);
  std::snprintf(error->where, sizeof error->where, "%s", where);
  return status;
}

void serve_channel(Program& program, Channel channel) {
  // Not zeroed: what is not used takes no memory.
  const auto body = std::make_unique_for_overwrite<unsigned char[]>(kMessageBytes);
  std::string message;
  std::vector<Told> told;
  for (;;) {
    channel.wait_child();
    const uint32_t bytes = std::min(channel.bytes(), static_cast<uint32_t>(kMessageBytes));
    message.assign(reinterpret_cast<const char*>(channel.message()), bytes);
    Pool pool;
    Writer out(body.get(), kMessageBytes / 2);
    Request request{program, channel, Reader(message, pool), out};
    cald_error error{};
    error.struct_size = sizeof error;
    told.clear();
    told_inside = &told;
    const cald_status status = serve(request, &error);
    told_inside = nullptr;

    Writer reply(channel.message(), kMessageBytes);
    reply.pod(out.good() ? status : static_cast<cald_status>(CALD_INTERNAL));
    const bool failed = error.code != CALD_OK || error.message[0] != '\0';
    reply.pod(static_cast<uint8_t>(failed));
    if (failed) carry(reply, error);
    reply.pod(program.ring.position());
    reply.pod(static_cast<uint32_t>(told.size()));
    for (Told& one : told) {
      reply.pod(one.token);
      carry(reply, one.completion);
    }
    reply.raw(body.get(), out.bytes());
    channel.give(Turn::PARENT, Kind::REPLY, static_cast<uint32_t>(reply.bytes()));
  }
}

}  // namespace calrt::isolate
