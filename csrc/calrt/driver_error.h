// SPDX-License-Identifier: Apache-2.0
// What a driver answers when it fails, as calrt's Error. A number that calrt has no meaning for is
// INTERNAL with the number kept, in the status class of the entry that answered it.
#pragma once

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt {

// The error of one entry. `status` is not OK; `detail` is what the driver filled, `entry` its name.
Error driver_error(cald_status status, const cald_error& detail, const char* entry);

// Why a job failed, from its completion alone: status, native number, whether it is unmapped. No
// text: that is job_query's. `entry`: "submit" or "kv_submit". A completion of an older ABI will
// do.
Error completion_error(const cald_completion& completion, const char* entry);

// Status class of a number that `entry` answered and nobody mapped: "submit", "package", ...
const char* entry_class(const char* entry);

}  // namespace calrt
