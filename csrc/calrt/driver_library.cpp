// SPDX-License-Identifier: Apache-2.0
#include "calrt/driver_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/log.h"
#include "base/process.h"
#include "base/ranked_mutex.h"
#include "calrt/driver_host.h"
#include "calrt/whole_library.h"
#include "layers/abi_version.h"
#include "layers/isolate/isolate.h"

namespace calrt {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPrefix = "libcald_";
#if defined(__APPLE__)
constexpr const char* kSuffix = ".dylib";
#else
constexpr const char* kSuffix = ".so";
#endif

std::string library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&monotonic_ns), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path().string();
}

// The folders that hold drivers, in order of search.
std::vector<std::string> search_folders() {
  std::vector<std::string> folders;
  const char* listed = std::getenv("CALRT_DRIVER_PATH");
  for (std::string rest = listed != nullptr ? listed : ""; !rest.empty();) {
    const size_t colon = rest.find(':');
    std::string folder = rest.substr(0, colon);
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    if (folder.empty()) continue;
    if (folder[0] != '/')  // else what is loaded would depend on the working directory
      log_line(LOG_WARNING, "calrt", "CALRT_DRIVER_PATH: '%s' is not absolute, ignored",
               folder.c_str());
    else
      folders.push_back(std::move(folder));
  }
  if (std::string own = library_folder(); !own.empty()) folders.push_back(own + "/drivers");
  return folders;
}

bool is_short_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

}  // namespace

Result<std::string> DriverLibrary::find(const std::string& name) {
  std::error_code failed;
  if (!name.empty() && name[0] == '/') {
    const std::string real = fs::canonical(name, failed).string();
    if (failed)
      return fail(Status::INVALID_ARGUMENT, "driver %s: %s", name.c_str(),
                  failed.message().c_str());
    return real;
  }
  if (!is_short_name(name))
    return fail(
        Status::INVALID_ARGUMENT,
        "driver '%s' is neither a short name (letters, digits, _ and -) nor an absolute path",
        name.c_str());
  const std::vector<std::string> folders = search_folders();
  for (const std::string& folder : folders) {
    const std::string real =
        fs::canonical(folder + "/" + kPrefix + name + kSuffix, failed).string();
    if (!failed) return real;
  }
  return fail(Status::INVALID_ARGUMENT,
              "there is no driver '%s': found %s; sought %s%s%s in %s (CALRT_DRIVER_PATH adds "
              "folders)",
              name.c_str(), joined(DriverLibrary::available()).c_str(), kPrefix, name.c_str(),
              kSuffix, joined(folders).c_str());
}

namespace {

struct TableField {
  const char* name;
  size_t offset;
  bool needed;
};
constexpr TableField kTableFields[] = {
    {"name", offsetof(cald_driver_table, name), true},
    {"version", offsetof(cald_driver_table, version), true},
#define CALD_ENTRY(entry, need, minor, cls) \
  {#entry, offsetof(cald_driver_table, entry), #need[0] == 'R'},
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};

Result<void> check_table(const std::string& path, const cald_driver_table* table) {
  if (table == nullptr)
    return fail(Status::VERSION_MISMATCH, "driver %s: its entry gave no table", path.c_str());
  constexpr size_t kHead = offsetof(cald_driver_table, abi_version) + sizeof(uint32_t);
  if (table->struct_size < kHead)
    return fail(Status::VERSION_MISMATCH,
                "driver %s: table.struct_size is %u, at least %zu is needed to read its version",
                path.c_str(), table->struct_size, kHead);
  if (!speaks_abi(table->abi_version))
    return fail(Status::VERSION_MISMATCH,
                "driver %s speaks driver ABI %u.%u, calrt speaks %d.%d: build it against calrt's "
                "driver.h",
                path.c_str(), table->abi_version >> 16, table->abi_version & 0xffff, CALD_ABI_MAJOR,
                CALD_ABI_MINOR);
  for (const TableField& entry : kTableFields) {
    if (!entry.needed) continue;
    const char* why = nullptr;
    if (entry.offset + sizeof(void*) > table->struct_size) {
      why = "lies beyond its table's struct_size";
    } else {
      const void* pointer = nullptr;
      std::memcpy(&pointer, reinterpret_cast<const char*>(table) + entry.offset, sizeof pointer);
      if (pointer == nullptr) why = "is NULL";
    }
    if (why != nullptr)
      return fail(Status::VERSION_MISMATCH, "driver %s: required entry '%s' %s", path.c_str(),
                  entry.name, why);
  }
  return {};
}

}  // namespace

Result<cald_driver_entry_fn> load_entry(const std::string& path, bool isolated) {
  if (isolated) return isolate::entry_of(path);
  CALRT_TRY(check_library_is_whole(path));
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return fail(Status::INVALID_ARGUMENT, "driver %s cannot be loaded: %s", path.c_str(),
                why != nullptr ? why : "no reason given");
  }
  auto entry = reinterpret_cast<cald_driver_entry_fn>(dlsym(library, "cald_driver_entry"));
  if (entry == nullptr)
    return fail(Status::VERSION_MISMATCH,
                "%s is no calrt driver: it does not export cald_driver_entry", path.c_str());
  return entry;
}

namespace {

Result<const cald_driver_table*> ask_for_table(const std::string& path,
                                               cald_driver_entry_fn entry) {
  const cald_driver_table* table = nullptr;
  auto answered = call_driver("driver_entry", [&](cald_error* detail) {
    const cald_status status =
        ask_entry([&](uint32_t version) { return entry(&driver_host(), version, &table); });
    if (status != CALD_OK)
      std::snprintf(detail->message, sizeof detail->message,
                    "driver %.160s refuses calrt's driver ABI %d.%d", path.c_str(), CALD_ABI_MAJOR,
                    CALD_ABI_MINOR);
    return status;
  });
  CALRT_TRY(std::move(answered));
  CALRT_TRY(check_table(path, table));
  return table;
}

}  // namespace

// Every library ever loaded, by real path. Never freed: libraries stay mapped until the process
// ends, and so must what is known of them.
struct DriverRegistry {
  RankedMutex mutex{LockRank::DRIVERS, "driver registry"};
  std::map<std::string, const cald_driver_table*> tables;
  std::map<std::string, Slot<DriverLibrary>> slots;  // by path

  static DriverRegistry& get() { return per_process<DriverRegistry>(); }

  Result<const cald_driver_table*> table(const std::string& path) {
    const std::scoped_lock lock(mutex);
    if (const auto known = tables.find(path); known != tables.end()) return known->second;
    CALRT_TRY_ASSIGN(const cald_driver_entry_fn entry, load_entry(path));
    CALRT_TRY_ASSIGN(const cald_driver_table* table, ask_for_table(path, entry));
    tables.emplace(path, table);
    return table;
  }

  // Not under the mutex: a library that hangs while it is loaded holds up nobody else.
  static Result<const cald_driver_table*> isolated_table(const std::string& path) {
    CALRT_TRY_ASSIGN(const cald_driver_entry_fn entry, load_entry(path, true));
    return ask_for_table(path, entry);
  }

  Slot<DriverLibrary>& slot(const std::string& path) {
    const std::scoped_lock lock(mutex);
    return slots[path];
  }

  // `sharable`: not in a process of its own, which may be dead.
  Result<std::shared_ptr<DriverLibrary>> open(const std::string& path, bool sharable,
                                              const cald_driver_table& own,
                                              std::vector<std::shared_ptr<layers::Layer>> layers) {
    // Layers have a state, e.g. how often a rule was met: each open has its own. A driver as it is
    // is shared.
    Slot<DriverLibrary>* shared = layers.empty() && sharable ? &slot(path) : nullptr;
    if (shared != nullptr) {
      bool timed_out = false;
      if (auto living = shared->take(std::chrono::seconds(10), &timed_out)) return living;
      if (timed_out)
        return fail(Status::INVALID_STATE,
                    "driver %s is still closing after 10 s: try again, or restart the process",
                    path.c_str());
    }
    // On failure ~DriverLibrary vacates the slot.
    std::shared_ptr<DriverLibrary> library(new DriverLibrary(shared));
    library->path_ = path;
    CALRT_TRY_ASSIGN(library->layered_, layers::LayeredTable::make(own, std::move(layers)));
    const cald_driver_table& table = library->table();
    CALRT_TRY_ASSIGN(
        cald_driver * driver,
        call_driver_for<cald_driver>("driver_open", [&](cald_driver** out, cald_error* detail) {
          return table.driver_open(&driver_host(), out, detail);
        }));
    library->driver_ = DriverHandle({driver, &table});
    if (shared != nullptr) shared->set(library);
    return library;
  }
};

Result<std::shared_ptr<DriverLibrary>> DriverLibrary::load(const std::string& name,
                                                           const std::string& layers,
                                                           bool isolated) {
  CALRT_TRY_ASSIGN(auto made,
                   layers::make_layers(layers));  // first: what has no meaning costs none
  CALRT_TRY_ASSIGN(const std::string path, find(name));
  DriverRegistry& registry = DriverRegistry::get();
  CALRT_TRY_ASSIGN(const cald_driver_table* own,
                   isolated ? DriverRegistry::isolated_table(path) : registry.table(path));
  return registry.open(path, !isolated, *own, std::move(made));
}

std::vector<std::string> DriverLibrary::available() {
  std::vector<std::string> names;
  for (const std::string& folder : search_folders()) {
    std::error_code failed;
    for (fs::directory_iterator at(folder, failed), end; !failed && at != end;
         at.increment(failed)) {
      const std::string file = at->path().filename().string();
      const size_t ends = std::strlen(kPrefix) + std::strlen(kSuffix);
      if (file.size() <= ends || !file.starts_with(kPrefix) || !file.ends_with(kSuffix)) continue;
      names.push_back(file.substr(std::strlen(kPrefix), file.size() - ends));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

DriverLibrary::~DriverLibrary() {
  if (driver_.get().inherited()) {
    // In a fork's child the layers' threads and the locks are its parent's: left as they are.
    (void)layered_.release();
    return;
  }
  driver_.reset();
  layered_.reset();
  if (slot_ != nullptr) slot_->vacate();
}

}  // namespace calrt
