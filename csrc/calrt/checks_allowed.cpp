// SPDX-License-Identifier: Apache-2.0
// Allowed geometry (D12, D13), tokenizer (D15), parallelism (D20), versions (D21).
#include <algorithm>
#include <charconv>
#include <set>

#include "calrt/allowed.h"
#include "calrt/package_checks.h"

namespace calrt {
namespace {

class AllowedCheck {
 public:
  explicit AllowedCheck(const CheckContext& context)
      : manifest_(context.manifest), out_(context.out) {}

  void run() {
    bool sound = true;
    sound &= is_sound(manifest_.allowed_lanes, "/allowed/lanes", "allowed lanes");
    sound &= is_sound(manifest_.allowed_cells, "/allowed/cells", "allowed cells");
    sound &= is_sound(manifest_.allowed_profiles, "/allowed/profiles", "allowed profiles");
    sound &= is_sound(manifest_.allowed_depth, "/allowed/depth", "allowed depth");
    if (manifest_.allowed_chunks) {
      sound &= is_sound(*manifest_.allowed_chunks, "/allowed/chunks", "allowed chunks");
    }
    for (size_t i = 0; i < manifest_.kv_groups.size(); ++i) {
      const ManifestKvGroup& group = manifest_.kv_groups[i];
      const std::string field = "/kv/groups/" + std::to_string(i);
      sound &= is_sound(group.lanes, field + "/lanes", "lanes of group " + shown(group.name));
      sound &= is_sound(group.cells, field + "/cells", "cells of group " + shown(group.name));
    }
    if (!sound) return;
    for (const ManifestKvGroup& group : manifest_.kv_groups) {
      inside("lanes", manifest_.allowed_lanes, group.lanes);
      inside("cells", manifest_.allowed_cells, group.cells);
    }
    std::vector<uint64_t> batches, chunks;
    for (const ManifestGraph& graph : manifest_.graphs) {
      auto& values = graph.kind == CALD_GRAPH_DECODE ? batches : chunks;
      const auto& more = graph.kind == CALD_GRAPH_DECODE ? graph.batch : graph.chunk;
      values.insert(values.end(), more.begin(), more.end());
    }
    known(manifest_.allowed_profiles, batches, "profiles", "decode batches");
    if (manifest_.allowed_chunks) {
      known(*manifest_.allowed_chunks, chunks, "chunks", "prefill chunks");
    } else if (!chunks.empty() && !is_opaque(manifest_)) {
      out_.reject("D12", {.field = "/allowed/chunks"},
                  "allowed chunks is null, but the prefill graphs have chunks " +
                      allowed_text({chunks, 0, 0, 0}));
    }
  }

  void context() {
    const auto over = [this](const std::string& field, uint64_t cells) {
      if (cells <= manifest_.context) return;
      out_.reject("D13", {.field = field},
                  text("cells %s > model.context %s", std::to_string(cells).c_str(),
                       std::to_string(manifest_.context).c_str()),
                  std::to_string(manifest_.context), std::to_string(cells));
    };
    for (size_t i = 0; i < manifest_.kv_groups.size(); ++i) {
      over(text("/kv/groups/%zu/cells", i), manifest_.kv_groups[i].cells.largest());
    }
    over("/allowed/cells", manifest_.allowed_cells.largest());
  }

 private:
  bool is_sound(const Allowed& allowed, const std::string& field, const std::string& name) {
    const std::string problem = allowed_problem(allowed);
    if (problem.empty()) return true;
    out_.reject("D12", {.field = field}, name + ": " + problem);
    return false;
  }

  void inside(const char* name, const Allowed& allowed, const Allowed& group) {
    const auto outside = first_outside(allowed, group);
    if (!outside) return;
    const std::string value = std::to_string(*outside);
    const uint64_t most = group.largest();
    out_.reject("D12", {.field = std::string("/allowed/") + name},
                *outside > most ? text("allowed %s %s > group's %s", name, value.c_str(),
                                       std::to_string(most).c_str())
                                : text("allowed %s %s, the group has %s", name, value.c_str(),
                                       allowed_text(group).c_str()),
                json_quote(allowed_text(group)), value);
  }

  void known(const Allowed& allowed, const std::vector<uint64_t>& values, const char* name,
             const char* source) {
    const Allowed all{values, 0, 0, 0};
    std::optional<uint64_t> outside;
    if (values.empty()) {
      outside = allowed.largest();
    } else {
      outside = first_outside(allowed, all);
    }
    if (!outside) return;
    out_.reject("D12", {.field = std::string("/allowed/") + name},
                text("allowed %s %s, the %s are %s", name, std::to_string(*outside).c_str(), source,
                     values.empty() ? "none" : allowed_text(all).c_str()));
  }

  const Manifest& manifest_;
  Findings& out_;
};

void check_tokenizer(const Manifest& manifest, Findings* out) {
  if (!manifest.tokenizer_vocab || *manifest.tokenizer_vocab <= manifest.vocab) return;
  out->reject("D15", {.field = "/tokenizer/vocab"},
              text("%s tokens, %s columns", grouped(*manifest.tokenizer_vocab).c_str(),
                   grouped(manifest.vocab).c_str()),
              std::to_string(manifest.vocab), std::to_string(*manifest.tokenizer_vocab));
}

// "chip:1" or "chips:0+1" as chip numbers; "any" as none. Nothing for any other text.
std::optional<std::vector<uint64_t>> parse_placement(const std::string& text) {
  std::vector<uint64_t> chips;
  if (text == "any") return chips;
  const bool many = text.starts_with("chips:");
  if (!many && !text.starts_with("chip:")) return std::nullopt;
  const char* at = text.data() + (many ? 6 : 5);
  const char* end = text.data() + text.size();
  for (;;) {
    uint64_t chip = 0;
    const auto [next, error] = std::from_chars(at, end, chip);
    if (error != std::errc()) return std::nullopt;
    chips.push_back(chip);
    if (next == end) break;
    if (!many || *next != '+') return std::nullopt;
    at = next + 1;
  }
  return chips;
}

void check_placement(const Manifest& manifest, size_t index, Findings* out) {
  const std::string& placement = manifest.allowed_placement[index];
  const bool tensor = manifest.parallel_mode == "tensor";
  const uint64_t count = manifest.parallel_chips;
  const auto reject = [&](const std::string& message) {
    out->reject("D20", {.field = text("/allowed/placement/%zu", index)}, message);
  };
  const auto chips = parse_placement(placement);
  if (!chips) {
    reject(text("placement '%s' is not any, chip:N or chips:N+M", shown(placement).c_str()));
    return;
  }
  if (chips->empty()) return;
  const std::set<uint64_t> distinct(chips->begin(), chips->end());
  if (*distinct.rbegin() >= count) {
    reject(text("%s placed, the package has %s chips", shown(placement).c_str(),
                grouped(count).c_str()));
  } else if (tensor && distinct.size() != count) {
    reject(text("%s placed for a tensor-parallel package of %s chips", shown(placement).c_str(),
                grouped(count).c_str()));
  } else if (!tensor && distinct.size() != 1) {
    reject(text("%s placed for a package of mode none", shown(placement).c_str()));
  }
}

void check_parallelism(const Manifest& manifest, Findings* out) {
  const bool tensor = manifest.parallel_mode == "tensor";
  const uint64_t wanted = tensor ? manifest.parallel_chips : 1;
  if (manifest.parallel_degree != wanted) {
    out->reject("D20", {.field = "/parallelism/degree"},
                text("degree %s, wanted %s for mode %s on %s chips",
                     grouped(manifest.parallel_degree).c_str(), grouped(wanted).c_str(),
                     manifest.parallel_mode.c_str(), grouped(manifest.parallel_chips).c_str()));
  }
  if (tensor && manifest.parallel_chips < 2) {
    out->reject("D20", {.field = "/parallelism/chips"}, "mode tensor on 1 chip, at least 2");
  }
  for (size_t i = 0; i < manifest.allowed_parallel.size(); ++i) {
    if (manifest.allowed_parallel[i] == manifest.parallel_mode) continue;
    out->reject("D20", {.field = text("/allowed/parallel/%zu", i)},
                text("allowed parallel %s, the package's mode is %s",
                     manifest.allowed_parallel[i].c_str(), manifest.parallel_mode.c_str()));
  }
  for (size_t i = 0; i < manifest.allowed_placement.size() && !out->full("D20"); ++i) {
    check_placement(manifest, i, out);
  }
}

void check_versions(const Manifest& manifest, Findings* out) {
  for (const auto& [name, version] : manifest.versions) {
    const bool range = !version.min.empty() || !version.below.empty();
    std::string problem;
    if (!version.exact.empty() && range) {
      problem = "exact and a range";
    } else if (version.exact.empty() && (version.min.empty() || version.below.empty())) {
      problem = "wanted exact, or min and below as lists of integers";
    } else if (range && version.min >= version.below) {
      problem =
          text("min %s is not less than below %s", allowed_text({version.min, 0, 0, 0}).c_str(),
               allowed_text({version.below, 0, 0, 0}).c_str());
    }
    if (!problem.empty()) {
      out->reject("D21", {.field = "/versions/" + name}, name + ": " + problem);
    }
  }
}

}  // namespace

void check_allowed(const CheckContext& context) {
  AllowedCheck check(context);
  check.run();
  check.context();
  check_tokenizer(context.manifest, &context.out);
  check_parallelism(context.manifest, &context.out);
  check_versions(context.manifest, &context.out);
}

}  // namespace calrt
