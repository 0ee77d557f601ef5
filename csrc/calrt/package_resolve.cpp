// SPDX-License-Identifier: Apache-2.0
// Load options against the package's allowed geometry, by name, before any device call.
#include <algorithm>

#include "calrt/allowed.h"
#include "calrt/findings.h"
#include "calrt/graph_geometry.h"
#include "calrt/model.h"
#include "calrt/package.h"
#include "layout/layout.h"

namespace calrt {
namespace {

Error refused(Status status, std::string message) {
  return Error{status, 0, std::move(message), "load"};
}

Result<uint32_t> number_option(const char* name, uint64_t value, const Allowed& allowed) {
  if (allowed.contains(value)) return static_cast<uint32_t>(value);
  if (const auto only = only_value(allowed)) {
    return refused(Status::OUT_OF_RANGE,
                   text("%s=%s not allowed: this package has %s = %s (fixed)", name,
                        std::to_string(value).c_str(), name, std::to_string(*only).c_str()));
  }
  return refused(
      Status::OUT_OF_RANGE,
      text("%s=%s not allowed: %s; nearest %s", name, std::to_string(value).c_str(),
           allowed_text(allowed).c_str(), std::to_string(nearest_allowed(allowed, value)).c_str()));
}

Result<std::string> word_option(const char* name, const std::string& value,
                                const std::vector<std::string>& allowed) {
  if (value.empty()) return allowed.front();
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
  return refused(Status::UNSUPPORTED, text("%s=%s not allowed: %s", name, shown(value).c_str(),
                                           joined(allowed).c_str()));
}

// A chip of one's own is not to be had from files that were compiled for several together, whatever
// the device could do: the answer says what would change that.
Result<std::string> placement_option(const LoadRequest& request, const Manifest& manifest) {
  auto placement = word_option("placement", request.placement, manifest.allowed_placement);
  const bool one_chip = request.placement.rfind("chip:", 0) == 0;
  if (placement.ok() || manifest.parallel_mode == "none" || !one_chip) return placement;
  return refused(
      placement.error().code,
      placement.error().message +
          text("; %s runs on %s chips as one (%s): one chip alone is C3 on it, it needs a "
               "package that the vendor's compiler makes for one chip",
               shown(manifest.name).c_str(), std::to_string(manifest.parallel_chips).c_str(),
               manifest.parallel_mode.c_str()));
}

// "" = `wanted` if it is allowed, else the first of the list.
Result<int32_t> dtype_option(const char* name, const std::string& value, int32_t wanted,
                             const std::vector<int32_t>& allowed) {
  const auto is_allowed = [&allowed](int32_t dtype) {
    return std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
  };
  if (value.empty() || value == "auto") return is_allowed(wanted) ? wanted : allowed.front();
  const int32_t dtype = dtype_from_name(value);
  if (is_allowed(dtype)) return dtype;
  std::vector<std::string> names;
  for (int32_t one : allowed) names.emplace_back(dtype_name(one));
  return refused(Status::DTYPE_MISMATCH,
                 text("%s=%s not allowed: %s", name, shown(value).c_str(), joined(names).c_str()));
}

Result<std::string> compute_option(const std::string& value,
                                   const std::vector<std::string>& allowed) {
  if (value.empty() || value == "auto") {
    for (const std::string& word : allowed) {
      if (word != "auto") return word;
    }
    return refused(Status::UNSUPPORTED,
                   "compute: the package allows auto alone, which names no precision");
  }
  return word_option("compute", value, allowed);
}

int32_t compute_number(const std::string& word) {
  return word == "f32"    ? CALD_COMPUTE_F32
         : word == "bf16" ? CALD_COMPUTE_BF16
         : word == "int8" ? CALD_COMPUTE_INT8
                          : CALD_COMPUTE_PACKAGE;
}

// The asked values, or all that graphs have and the package allows; ascending, each once.
Result<std::vector<uint32_t>> list_option(const char* name, const std::vector<uint32_t>& asked,
                                          const std::vector<uint64_t>& known,
                                          const Allowed& allowed) {
  std::vector<uint32_t> out;
  if (asked.empty()) {
    for (uint64_t value : known) {
      if (value != 0 && allowed.contains(value)) out.push_back(static_cast<uint32_t>(value));
    }
  }
  for (uint32_t value : asked) {
    CALRT_TRY_ASSIGN(const uint32_t one, number_option(name, value, allowed));
    out.push_back(one);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace

Result<ResolvedLoad> Package::resolve(const LoadRequest& request) const {
  if (verdict_.rejected()) return verdict_.error();
  const Manifest& manifest = manifest_;
  ResolvedLoad out;
  const auto lanes_default =
      only_value(manifest.allowed_lanes).value_or(nearest_allowed(manifest.allowed_lanes, 1));
  CALRT_TRY_ASSIGN(out.lanes, number_option("lanes", request.lanes ? *request.lanes : lanes_default,
                                            manifest.allowed_lanes));
  const uint64_t cells_default = largest_up_to(manifest.allowed_cells, manifest.context);
  CALRT_TRY_ASSIGN(out.cells, number_option("cells", request.cells ? *request.cells : cells_default,
                                            manifest.allowed_cells));

  CALRT_TRY_ASSIGN(const std::string compute,
                   compute_option(request.compute, manifest.allowed_compute));
  out.compute = compute_number(compute);
  const int32_t follows = out.compute == CALD_COMPUTE_F32 ? CALD_F32 : CALD_BF16;
  CALRT_TRY_ASSIGN(out.kv_dtype,
                   dtype_option("kv_dtype", request.kv_dtype, follows, manifest.allowed_kv_dtype));
  CALRT_TRY_ASSIGN(out.logits_dtype, dtype_option("logits_dtype", request.logits_dtype, follows,
                                                  manifest.allowed_logits_dtype));
  CALRT_TRY_ASSIGN(out.parallel,
                   word_option("parallel", request.parallel, manifest.allowed_parallel));
  CALRT_TRY_ASSIGN(out.placement, placement_option(request, manifest));

  std::vector<uint64_t> batches, chunks;
  for (const ExpandedGraph& graph : expand_graphs(manifest)) {
    const bool decode = graph.graph->kind == CALD_GRAPH_DECODE;
    (decode ? batches : chunks).push_back(decode ? graph.batch : graph.chunk);
  }
  CALRT_TRY_ASSIGN(out.profiles,
                   list_option("profiles", request.profiles, batches, manifest.allowed_profiles));
  if (manifest.allowed_chunks) {
    CALRT_TRY_ASSIGN(out.chunks,
                     list_option("chunks", request.chunks, chunks, *manifest.allowed_chunks));
  } else if (!request.chunks.empty()) {
    return refused(Status::OUT_OF_RANGE,
                   text("chunks=%u not allowed: the package does not state its chunks",
                        request.chunks.front()));
  }
  return out;
}

}  // namespace calrt
