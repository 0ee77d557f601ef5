// SPDX-License-Identifier: Apache-2.0
// Checks C05-C12: the tape of a manifest against the table of manifest-1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "calrt/findings.h"
#include "calrt/json_tape.h"

namespace calrt {

// Reports everything that is not manifest-1 (C06, C07, then C05 and C08-C12). False when the
// package is of another manifest version, whose fields mean nothing here.
bool check_schema(const JsonTape& tape, Findings* out);

// An integer literal of 0 to 2^53 - 1, without sign, point or exponent; nothing otherwise.
std::optional<uint64_t> parse_uint(std::string_view token);

}  // namespace calrt
