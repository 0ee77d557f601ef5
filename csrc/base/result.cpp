// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

namespace calrt {

std::string error_text(const Error& error) {
  const auto number = static_cast<int32_t>(error.code);
  const StatusRow& row = status_row(number);
  std::string text = row.name;
  text += " (calrt " + std::to_string(row.number);
  if (error.native_code != 0 || error.unmapped) {
    text += ", native " + std::to_string(error.native_code);
    if (error.unmapped) text += " unmapped";
  }
  text += "): ";
  text += error.message.empty() ? row.sentence : error.message;
  return text;
}

}  // namespace calrt
