// SPDX-License-Identifier: Apache-2.0
// Bad behaviour, switched on from outside, and what every function of the SDK begins with.
//
// CALRT_STANDIN_VICES = "name[@nth][:argument],..." is read by calrt_init. `nth` counts the
// occasions of this entry from 1; without it each occasion is one. What happens is also said on
// stderr, in one line. README.md has the list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace calrt::standin {

enum class Function {
#define STANDIN_FUNCTION(name) name,
#include "functions.inc"
#undef STANDIN_FUNCTION
};

// False when the variable is malformed or names what is not known; `why` says what.
bool read_vices(std::string* why);

// One occasion of a vice: its argument if it is to happen now.
std::optional<std::string> due(const char* vice);
// The same with a number for an argument.
std::optional<uint32_t> due_number(const char* vice, uint32_t if_none);

[[noreturn]] void never_return();

// Acts out the vices of the call itself and forgets this thread's borrowed error text. Not 0: what
// to answer at once.
int enter(Function function);

// Notes the text of an error and answers its number, as the caller is to see it.
[[gnu::format(printf, 2, 3)]] int refuse(int number, const char* format, ...);
// The same of a broken rule that the header marks MISUSE: may abort.
[[gnu::format(printf, 2, 3)]] int misuse(int number, const char* format, ...);
// An error number as the caller is to see it.
int shown(int number);

}  // namespace calrt::standin
