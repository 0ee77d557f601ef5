// SPDX-License-Identifier: Apache-2.0
// Roles (D03), shapes (D04), layouts (D05, D06), dtypes (D08) and lanes (D14) of graphs.
#include <algorithm>
#include <map>

#include "calrt/manifest_read.h"
#include "calrt/package_checks.h"
#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt {
namespace {

bool is_decode(const ManifestGraph& graph) { return graph.kind == CALD_GRAPH_DECODE; }

std::string values_text(const std::vector<uint64_t>& values) {
  std::vector<std::string> words;
  for (uint64_t value : values) words.push_back(std::to_string(value));
  return joined(words);
}

// What one dimension must be: a symbol, or '1' for the number one.
const char* wanted_dims(const ManifestGraph& graph, int32_t role) {
  switch (role) {
    case CALD_ROLE_TOKENS:
    case CALD_ROLE_POSITIONS:
      return is_decode(graph) ? "B" : "T";
    case CALD_ROLE_LANES:
      return is_decode(graph) ? "B" : "1";
    case CALD_ROLE_N_VALID:
      return "1";
    case CALD_ROLE_LOGIT_ROWS:
      return "R";
    case CALD_ROLE_LOGITS:
      return is_decode(graph) ? "BV" : has_input(graph, CALD_ROLE_LOGIT_ROWS) ? "RV" : "1V";
    default:
      return nullptr;  // a mask may have any shape
  }
}

class GraphCheck {
 public:
  GraphCheck(const CheckContext& context, size_t index)
      : context_(context),
        manifest_(context.manifest),
        graph_(context.manifest.graphs[index]),
        field_("/graphs/" + std::to_string(index)),
        out_(context.out) {}

  void run() {
    roles();
    values();
    ios("inputs", graph_.inputs);
    ios("outputs", graph_.outputs);
    lanes();
  }

 private:
  void reject(const char* code, const std::string& field, const std::string& message) {
    out_.reject(code, {.field = field_ + field}, graph_.name + ": " + message);
  }

  void roles() {
    std::map<int32_t, size_t> counts;
    for (const ManifestIo& io : graph_.inputs) ++counts[io.role];
    for (const ManifestIo& io : graph_.outputs) ++counts[io.role];
    for (const auto& [role, count] : counts) {
      if (count > 1) {
        reject("D03", "", text("role %s %zu times, once at most", role_name(role), count));
      }
    }
    const char* kind = is_decode(graph_) ? "decode" : "prefill";
    const auto needs = [&](int32_t role) {
      if (counts[role] == 0) {
        reject("D03", "", text("a %s graph needs the role %s", kind, role_name(role)));
      }
    };
    needs(CALD_ROLE_TOKENS);
    needs(CALD_ROLE_LOGITS);
    const bool one_token = graph_.chunk == std::vector<uint64_t>{1};
    if (!is_decode(graph_) && !one_token && !is_opaque(manifest_)) needs(CALD_ROLE_N_VALID);
  }

  // The lists of batch and chunk themselves.
  void values() {
    const auto has_zero = [](const std::vector<uint64_t>& values) {
      return std::find(values.begin(), values.end(), 0u) != values.end();
    };
    if (has_zero(graph_.batch)) reject("D04", "/batch", "batch 0");
    if (has_zero(graph_.chunk)) reject("D04", "/chunk", "chunk 0");
    if (is_decode(graph_) && !graph_.chunk.empty()) {
      reject("D04", "/chunk", "a decode graph has no chunk, wanted null");
    }
    if (!is_decode(graph_) && graph_.batch != std::vector<uint64_t>{1}) {
      reject("D04", "/batch",
             text("prefill batch %s, wanted 1", values_text(graph_.batch).c_str()));
    }
    if (!is_decode(graph_) && graph_.chunk.empty() && !is_opaque(manifest_)) {
      reject("D04", "/chunk", "chunk is null: a prefill graph needs its chunks");
    }
    if (!graph_.artifacts.empty() && (graph_.batch.size() > 1 || graph_.chunk.size() > 1)) {
      reject("D04", "",
             text("a graph with artifacts has one shape, found %zu batches and %zu chunks",
                  graph_.batch.size(), graph_.chunk.size()));
    }
  }

  void ios(const char* list, const std::vector<ManifestIo>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string field = text("/%s/%zu", list, i);
      shape(field, all[i]);
      layout(field, all[i]);
      dtype(field, all[i]);
    }
  }

  void shape(const std::string& field, const ManifestIo& io) {
    const std::string label = std::string(role_name(io.role)) + " " + dims_text(io.shape);
    const std::string legal = is_decode(graph_) ? "BVLC" : "TRVLC";
    for (const ManifestDim& dim : io.shape) {
      if (dim.symbol == 0 || legal.find(dim.symbol) != std::string::npos) continue;
      reject("D04", field + "/shape",
             text("%s: %c is not allowed in a %s graph", label.c_str(), dim.symbol,
                  is_decode(graph_) ? "decode" : "prefill"));
      return;
    }
    const char* wanted = wanted_dims(graph_, io.role);
    if (wanted == nullptr) return;
    if (io.shape.size() != std::char_traits<char>::length(wanted)) {
      reject("D04", field + "/shape",
             text("%s has rank %zu, wanted %zu", label.c_str(), io.shape.size(),
                  std::char_traits<char>::length(wanted)));
      return;
    }
    for (size_t i = 0; i < io.shape.size(); ++i) {
      const std::string problem = dim_problem(io.shape[i], wanted[i]);
      if (!problem.empty()) reject("D04", field + "/shape", label + ", " + problem);
    }
  }

  // "" when the dimension says what the role wants, else what stands against it.
  std::string dim_problem(const ManifestDim& dim, char wanted) const {
    const auto all_are = [&dim](const std::vector<uint64_t>& values) {
      return std::all_of(values.begin(), values.end(),
                         [&dim](uint64_t value) { return value == dim.value; });
    };
    if (dim.symbol == wanted) return "";
    if (dim.symbol != 0) {
      return wanted == '1' ? text("one row wanted, found %c", dim.symbol)
                           : text("%c wanted in the place of %c", wanted, dim.symbol);
    }
    switch (wanted) {
      case 'B':
        return all_are(graph_.batch) ? "" : "batch " + values_text(graph_.batch);
      case 'T':
        return all_are(graph_.chunk) ? "" : "chunk " + values_text(graph_.chunk);
      case 'V':
        return dim.value == manifest_.vocab
                   ? ""
                   : text("model.vocab %s", std::to_string(manifest_.vocab).c_str());
      case 'R':
        return std::all_of(graph_.chunk.begin(), graph_.chunk.end(),
                           [&dim](uint64_t chunk) { return dim.value <= chunk; })
                   ? ""
                   : "chunk " + values_text(graph_.chunk);
      default:
        return dim.value == 1 ? "" : "one row wanted";
    }
  }

  void layout(const std::string& field, const ManifestIo& io) {
    for (const ExpandedGraph& expanded : context_.graphs) {
      if (expanded.graph != &graph_) continue;
      const Geometry geometry = largest_geometry(manifest_, expanded);
      Result<cald_layout> layout = io_layout(io, geometry);
      if (layout.ok()) {
        if (Result<void> apart = check_injective(*layout, dtype_size(io.dtype)); apart.ok()) {
          continue;
        } else {
          layout = apart.error();
        }
      }
      const bool overlap = layout.error().where == "injective";
      reject(overlap ? "D06" : "D05", field + "/layout",
             text("%s of %s: %s", role_name(io.role), expanded.name.c_str(),
                  layout.error().message.c_str()));
      break;  // the other sizes of this list would say the same
    }
    if (io.align < dtype_size(io.dtype)) {
      reject("D05", field + "/align",
             text("%s: align %s is less than the %u bytes of an element", role_name(io.role),
                  grouped(io.align).c_str(), dtype_size(io.dtype)));
    }
  }

  void dtype(const std::string& field, const ManifestIo& io) {
    const std::string at = field + "/dtype";
    const char* role = role_name(io.role);
    const bool ours = manifest_.driver == "cpu" || manifest_.driver == "mock";
    if (io.dtype == 0) {
      if (ours) {
        reject("D08", at, text("%s: dtype is null, %s needs it", role, manifest_.driver.c_str()));
      }
      return;
    }
    if (io.role == CALD_ROLE_LOGITS) {
      const std::vector<int32_t>& allowed = manifest_.allowed_logits_dtype;
      if (std::find(allowed.begin(), allowed.end(), io.dtype) != allowed.end()) return;
      std::vector<std::string> names;
      for (int32_t one : allowed) names.emplace_back(dtype_name(one));
      reject(
          "D08", at,
          text("logits %s, allowed.logits_dtype %s", dtype_name(io.dtype), joined(names).c_str()));
    } else if (ours && io.role != CALD_ROLE_MASK && io.dtype != CALD_I32) {
      reject("D08", at, text("%s %s, wanted i32", role, dtype_name(io.dtype)));
    }
  }

  void lanes() {
    const bool input = has_input(graph_, CALD_ROLE_LANES);
    const bool any = graph_.lane_map == CALD_LANE_MAP_ANY;
    if (input != any) {
      reject("D14", "",
             any ? "lane_map any needs a lanes input" : "a lanes input needs lane_map any");
    }
    for (const ManifestKvGroup& group : manifest_.kv_groups) {
      if (group.name != graph_.share_group) continue;
      const uint64_t most = group.lanes.largest();
      if (graph_.lane_map == CALD_LANE_MAP_NONE && most > 1) {
        reject("D14", "/lane_map",
               text("lane_map none, but group %s has up to %s lanes", shown(group.name).c_str(),
                    grouped(most).c_str()));
      }
      for (uint64_t batch : graph_.batch) {
        if (graph_.lane_map != CALD_LANE_MAP_IDENTITY || batch <= most) continue;
        reject("D14", "/lane_map",
               text("lane_map identity with batch %s, but group %s has %s lanes",
                    grouped(batch).c_str(), shown(group.name).c_str(), grouped(most).c_str()));
      }
    }
  }

  const CheckContext& context_;
  const Manifest& manifest_;
  const ManifestGraph& graph_;
  std::string field_;
  Findings& out_;
};

void check_golden_dtypes(const Manifest& manifest, Findings* out) {
  const std::vector<int32_t>& allowed = manifest.allowed_logits_dtype;
  for (size_t g = 0; g < manifest.golden.size(); ++g) {
    const ManifestGolden& golden = manifest.golden[g];
    for (size_t i = 0; i < golden.outputs.size(); ++i) {
      const int32_t dtype = golden.outputs[i].dtype;
      if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) continue;
      out->reject("D08", {.field = text("/golden/%zu/outputs/%zu/dtype", g, i)},
                  text("golden %s: logits %s, not in allowed.logits_dtype",
                       shown(golden.name).c_str(), dtype_name(dtype)));
    }
  }
}

}  // namespace

void check_graphs(const CheckContext& context) {
  if (context.graphs.size() > kMaxExpandedGraphs) {
    context.out.reject(
        "D04", {.field = "/graphs"},
        text("the lists of batch and chunk give over %zu graphs", kMaxExpandedGraphs));
  }
  for (size_t i = 0; i < context.manifest.graphs.size(); ++i) GraphCheck(context, i).run();
  check_golden_dtypes(context.manifest, &context.out);
}

}  // namespace calrt
