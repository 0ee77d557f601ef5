// SPDX-License-Identifier: Apache-2.0
#include "recovery.h"

#include <cstdio>
#include <string_view>

namespace embed {
namespace {

struct Row {
  std::string_view recovery;
  Action action;
  const char* text;
};
constexpr Row kRows[] = {
    {"fix_call", Action::FIX_CALL, "the request is refused"},
    {"wait", Action::WAIT_AND_RETRY, "it is tried again later"},
    {"retry", Action::RETRY, "it is tried once more"},
    {"scrub_lane", Action::SCRUB_LANE, "its lane is emptied and the request starts anew"},
    {"reload_model", Action::RELOAD_MODEL, "the model is loaded again"},
    {"reopen_device", Action::REOPEN_DEVICE, "the device is opened again"},
    {"none", Action::GIVE_UP, "nothing helps"},
};

const Row& row_for(const calrt::Error& error) {
  const std::string_view wanted = calrt::status_row(static_cast<int32_t>(error.code)).recovery;
  for (const Row& row : kRows)
    if (row.recovery == wanted) return row;
  return kRows[5];  // a recovery of a newer calrt: suspect everything
}

}  // namespace

Action action_for(const calrt::Error& error) { return row_for(error).action; }

void report(const calrt::Error& error) {
  const calrt::StatusRow& status = calrt::status_row(static_cast<int32_t>(error.code));
  std::fprintf(stderr, "embed: %s error, %s; %s\n",
               error.status_class != nullptr ? error.status_class : status.status_class,
               calrt::error_text(error).c_str(), row_for(error).text);
}

}  // namespace embed
