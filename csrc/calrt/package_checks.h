// SPDX-License-Identifier: Apache-2.0
// The checks that look across fields and files (C14 and gate D), each a function of the manifest.
// They run only on a manifest that passed the schema.
#pragma once

#include "calrt/findings.h"
#include "calrt/graph_geometry.h"
#include "calrt/manifest.h"
#include "calrt/package_files.h"

namespace calrt {

struct CheckContext {
  const Manifest& manifest;
  const std::vector<ExpandedGraph>& graphs;
  const PackageFiles& files;
  Findings& out;
};

void check_names(const CheckContext& context);         // C14
void check_architecture(const CheckContext& context);  // C09, C11, C12 that depend on model.arch
void check_references(const CheckContext& context);    // D02
void check_graphs(const CheckContext& context);        // D03-D06, D08, D14
void check_kv(const CheckContext& context);            // D08-D11, D13
void check_allowed(const CheckContext& context);       // D12, D13, D15, D20, D21
void check_tensors(const CheckContext& context);       // D17-D19

}  // namespace calrt
