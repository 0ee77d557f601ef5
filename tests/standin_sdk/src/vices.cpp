// SPDX-License-Identifier: Apache-2.0
#include "vices.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "calculet/calrt_sdk.h"

namespace calrt::standin {
namespace {

constexpr const char* kFunctions[] = {
#define STANDIN_FUNCTION(name) #name,
#include "functions.inc"
#undef STANDIN_FUNCTION
};

enum class Takes { NOTHING, NUMBER, FUNCTION, FUNCTION_AND_NUMBER };
constexpr struct {
  const char* name;
  Takes takes;
} kVices[] = {{"abort", Takes::FUNCTION},
              {"abort_on_misuse", Takes::NOTHING},
              {"apply_spins", Takes::NOTHING},
              {"call_answers", Takes::FUNCTION_AND_NUMBER},
              {"call_never_returns", Takes::FUNCTION},
              {"completion_after_cancel", Takes::NOTHING},
              {"completion_twice", Takes::NOTHING},
              {"d0_padding", Takes::NOTHING},
              {"kv_silent_noops", Takes::NOTHING},
              {"late_completion", Takes::NUMBER},
              {"numbers_permuted", Takes::NOTHING},
              {"outputbuf_reused_early", Takes::NOTHING},
              {"run_fails", Takes::NUMBER},
              {"run_never_ends", Takes::NOTHING},
              {"run_takes", Takes::NUMBER},
              {"segfault", Takes::FUNCTION},
              {"wait_never_returns", Takes::NOTHING}};

struct Vice {
  std::string name, function, argument;
  uint64_t nth = 0;  // 0: always
  std::atomic<uint64_t> occasions{0};
};
std::vector<std::unique_ptr<Vice>> vices;  // fixed between one calrt_init and the next

thread_local std::string error_text;
thread_local std::unique_ptr<char[]> lent_text;  // on the heap, so that late readers are found

template <class T>
bool is_number(const std::string& text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

bool known_function(const std::string& name) {
  return std::any_of(std::begin(kFunctions), std::end(kFunctions),
                     [&](const char* function) { return name == function; });
}

// "name[@nth][:argument]"
std::unique_ptr<Vice> parse(const std::string& item) {
  auto vice = std::make_unique<Vice>();
  const size_t colon = item.find(':');
  const std::string head = item.substr(0, colon);
  if (colon != std::string::npos) vice->argument = item.substr(colon + 1);
  const size_t at = head.find('@');
  vice->name = head.substr(0, at);
  if (at != std::string::npos && (!is_number(head.substr(at + 1), &vice->nth) || vice->nth == 0))
    return nullptr;
  for (const auto& known : kVices) {
    if (vice->name != known.name) continue;
    uint32_t number = 0;
    if (known.takes == Takes::NOTHING) return vice->argument.empty() ? std::move(vice) : nullptr;
    if (known.takes == Takes::NUMBER)
      return vice->argument.empty() || is_number(vice->argument, &number) ? std::move(vice)
                                                                          : nullptr;
    const size_t equals = vice->argument.find('=');
    vice->function = vice->argument.substr(0, equals);
    if (!known_function(vice->function)) return nullptr;
    if ((known.takes == Takes::FUNCTION_AND_NUMBER) != (equals != std::string::npos))
      return nullptr;
    if (equals == std::string::npos) return vice;
    vice->argument = vice->argument.substr(equals + 1);
    return is_number(vice->argument, &number) ? std::move(vice) : nullptr;
  }
  return nullptr;
}

std::optional<std::string> due(const char* name, const char* function) {
  std::optional<std::string> argument;
  for (const auto& vice : vices) {
    if (vice->name != name || vice->function != function) continue;
    const uint64_t occasion = ++vice->occasions;
    if (vice->nth != 0 && vice->nth != occasion) continue;
    argument = vice->argument;
    std::fprintf(stderr, "standin_sdk: vice %s %s, occasion %llu\n", name, function,
                 static_cast<unsigned long long>(occasion));
  }
  return argument;
}

// The first line of a file, which it loses: each start has vices of its own.
std::string take_line(const std::string& path) {
  std::string line, rest;
  std::ifstream from(path);
  std::getline(from, line);
  std::getline(from, rest, '\0');
  from.close();
  std::ofstream(path) << rest;
  return line;
}

}  // namespace

bool read_vices(std::string* why) {
  std::vector<std::unique_ptr<Vice>> read;
  const char* text = std::getenv("CALRT_STANDIN_VICES");
  const std::string said = text != nullptr ? text : "";
  std::istringstream items(said.starts_with('@') ? take_line(said.substr(1)) : said);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.empty()) continue;
    read.push_back(parse(item));
    if (read.back() != nullptr) continue;
    *why = item;
    return false;
  }
  vices = std::move(read);
  return true;
}

std::optional<std::string> due(const char* vice) { return due(vice, ""); }

std::optional<uint32_t> due_number(const char* vice, uint32_t if_none) {
  const auto argument = due(vice);
  if (!argument) return std::nullopt;
  uint32_t number = if_none;
  (void)is_number(*argument, &number);
  return number;
}

void never_return() {
  for (;;) pause();
}

int enter(Function function) {
  const char* name = kFunctions[static_cast<size_t>(function)];
  lent_text.reset();
  if (due("call_never_returns", name)) never_return();
  if (due("abort", name)) std::abort();
  if (due("segfault", name)) std::raise(SIGSEGV);
  uint32_t number = 0;
  const auto answer = due("call_answers", name);
  if (!answer || !is_number(*answer, &number)) return 0;
  return refuse(static_cast<int>(number), "%s: the device answered %u", name, number);
}

int shown(int number) {
  if (number < 1 || number > CALRT_E_INTERNAL || !due("numbers_permuted")) return number;
  return number % CALRT_E_INTERNAL + 1;  // one to one on 1 to 29, and none keeps its meaning
}

int refuse(int number, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  error_text = text;
  return shown(number);
}

int misuse(int number, const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (due("abort_on_misuse")) {
    std::fprintf(stderr, "standin_sdk: misuse: %s\n", text);
    std::abort();
  }
  return refuse(number, "%s", text);
}

}  // namespace calrt::standin

using namespace calrt::standin;

const char* calrt_last_error(void) {
  (void)enter(Function::last_error);
  lent_text = std::make_unique<char[]>(error_text.size() + 1);
  std::copy(error_text.begin(), error_text.end(), lent_text.get());
  return lent_text.get();
}

const char* calrt_version(void) {
  (void)enter(Function::version);
  return CALRT_SDK_VERSION;
}
