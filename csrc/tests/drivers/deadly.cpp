// SPDX-License-Identifier: Apache-2.0
// A driver that dies: null, whose entries do what the environment says.
//   CALRT_DEADLY="ENTRY HOW [NTH]"   at the NTH call (from 1) of ENTRY: hang, abort, segv, exit,
//   kill
//                                    before the call; "after_..." the same behind it; scribble
//                                    writes at random, from then on, where the parent reads
//   CALRT_DEADLY="-"                 nothing
// ENTRY may be `load`, which is the library's own entry.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "calrt/driver.h"

extern "C" cald_status null_driver_entry(const cald_host* host, uint32_t abi,
                                         const cald_driver_table** out);

namespace {

struct Wish {
  std::string entry, how;
  int nth = 1;
  static const Wish& get() {
    static const Wish wish = [] {
      Wish made;
      const char* text = std::getenv("CALRT_DEADLY");
      char entry[64] = "", how[64] = "";
      if (text != nullptr) std::sscanf(text, "%63s %63s %d", entry, how, &made.nth);
      made.entry = entry;
      made.how = how;
      return made;
    }();
    return wish;
  }
};

// Where the memory that is shared with the parent is mapped; null where there is none.
unsigned char* shared_memory() {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  unsigned long begin = 0;
  while (maps != nullptr && begin == 0 && std::fgets(line, sizeof line, maps) != nullptr)
    if (std::strstr(line, "memfd:calrt-isolate") != nullptr) (void)std::sscanf(line, "%lx", &begin);
  if (maps != nullptr) std::fclose(maps);
  return reinterpret_cast<unsigned char*>(begin);
}

// States, messages and the ring: the first 34 MiB, the first page most of all.
[[noreturn]] void scribble(uint32_t seed) {
  auto* at = reinterpret_cast<volatile unsigned char*>(shared_memory());
  for (std::mt19937 random(seed);;) {
    for (int i = 0; at != nullptr && i < 64; ++i) {
      at[random() % 2048] = static_cast<unsigned char>(random());
      at[(64 << 10) + random() % (34 << 20)] = static_cast<unsigned char>(random());
      at[(64 << 10) + random() % 512] = static_cast<unsigned char>(random());
    }
    usleep(random() % 200);
  }
}

void die(const char* how) {
  if (std::strcmp(how, "hang") == 0)
    for (;;) pause();
  if (std::strcmp(how, "abort") == 0) std::abort();
  if (std::strcmp(how, "segv") == 0) {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would catch it
    raise(SIGSEGV);
  }
  if (std::strcmp(how, "exit") == 0) _exit(7);
  if (std::strcmp(how, "kill") == 0) raise(SIGKILL);
  if (std::strncmp(how, "scribble", 8) == 0)
    std::thread(scribble, static_cast<uint32_t>(std::atoi(how + 8))).detach();
}

std::atomic<int> calls{0};

// Whether this call is the one.
bool meant(const char* entry) {
  const Wish& wish = Wish::get();
  return wish.entry == entry && ++calls == wish.nth;
}

const cald_driver_table* null_table = nullptr;

template <auto Member, const char* const* Name, class F>
struct Entry;
template <auto Member, const char* const* Name, class R, class... A>
struct Entry<Member, Name, R (*)(A...)> {
  static R call(A... arguments) {
    const bool now = meant(*Name);
    const bool after = Wish::get().how.rfind("after_", 0) == 0;
    if (now && !after) die(Wish::get().how.c_str());
    if constexpr (std::is_void_v<R>) {
      (null_table->*Member)(arguments...);
      if (now && after) die(Wish::get().how.c_str() + 6);
    } else {
      const R answer = (null_table->*Member)(arguments...);
      if (now && after) die(Wish::get().how.c_str() + 6);
      return answer;
    }
  }
};

#define CALD_ENTRY(name, need, minor, cls) constexpr const char* kName_##name = #name;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY

}  // namespace

extern "C" cald_status cald_driver_entry(const cald_host* host, uint32_t abi,
                                         const cald_driver_table** out) {
  if (meant("load")) die(Wish::get().how.c_str());
  const cald_status status = null_driver_entry(host, abi, &null_table);
  if (status != CALD_OK) return status;
  static cald_driver_table table;
  table = *null_table;
#define CALD_ENTRY(name, need, minor, cls) \
  table.name =                             \
      &Entry<&cald_driver_table::name, &kName_##name, decltype(cald_driver_table::name)>::call;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  *out = &table;
  return CALD_OK;
}
