// SPDX-License-Identifier: Apache-2.0
// From the tape to the structs of manifest.h.
#pragma once

#include "calrt/json_tape.h"
#include "calrt/manifest.h"

namespace calrt {

// Everything, of a manifest that check_schema() accepted.
Manifest read_manifest(const JsonTape& tape);
// Name, target, tokenizer and at most 4,096 artifacts of any tape: enough to check the files of a
// package whose manifest was refused. What has the wrong type is left at its default.
Manifest read_inventory(const JsonTape& tape);

}  // namespace calrt
