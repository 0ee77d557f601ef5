// SPDX-License-Identifier: Apache-2.0
#include "conformance/package_copy.h"

#include <algorithm>
#include <cstring>

namespace calrt::conformance {

void* PackageCopy::take(const void* from, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(from);
  return blocks_.emplace_back(first, first + bytes).data();
}

const char* PackageCopy::text(const char* from) {
  return from == nullptr ? nullptr : static_cast<const char*>(take(from, std::strlen(from) + 1));
}

const cald_graph* PackageCopy::graph(const cald_graph& from) {
  auto* copy = static_cast<cald_graph*>(take(&from, sizeof from));
  copy->name = text(from.name);
  copy->share_group = text(from.share_group);
  const auto list = [this](const cald_io* const* ios, uint32_t count) {
    std::vector<const cald_io*> copies;
    for (uint32_t i = 0; i < count; ++i) copies.push_back(one(ios[i]));
    return static_cast<const cald_io* const*>(take(copies.data(), copies.size() * sizeof(void*)));
  };
  copy->inputs = list(from.inputs, from.n_inputs);
  copy->outputs = list(from.outputs, from.n_outputs);
  return copy;
}

PackageCopy::PackageCopy(const cald_package& from) {
  package_ = static_cast<cald_package*>(take(&from, sizeof from));
  package_->name = text(from.name);
  package_->id = text(from.id);
  auto* arch = static_cast<cald_arch*>(take(from.arch, sizeof *from.arch));
  arch->name = text(from.arch->name);
  package_->arch = arch;
  std::vector<const void*> list;
  const auto keep = [&] {
    void* kept = take(list.data(), list.size() * sizeof(void*));
    list.clear();
    return kept;
  };
  for (uint32_t i = 0; i < from.n_artifacts; ++i) {
    auto* copy = static_cast<cald_artifact*>(take(from.artifacts[i], sizeof(cald_artifact)));
    copy->id = text(copy->id);
    copy->role = text(copy->role);
    list.push_back(copy);
  }
  package_->artifacts = static_cast<const cald_artifact* const*>(keep());
  for (uint32_t i = 0; i < from.n_tensors; ++i) {
    auto* copy = static_cast<cald_tensor*>(take(from.tensors[i], sizeof(cald_tensor)));
    copy->name = text(copy->name);
    list.push_back(copy);
  }
  package_->tensors = static_cast<const cald_tensor* const*>(keep());
  for (uint32_t i = 0; i < from.n_graphs; ++i) list.push_back(graph(*from.graphs[i]));
  package_->graphs = static_cast<const cald_graph* const*>(keep());
}

void PackageCopy::scribble() {
  for (std::vector<uint8_t>& block : blocks_) {
    std::fill(block.begin(), block.end(), 0x5A);
    if (!block.empty()) block.back() = 0;
  }
}

bool PackageCopy::is_own(const void* pointer) const {
  const auto* byte = static_cast<const uint8_t*>(pointer);
  return std::any_of(blocks_.begin(), blocks_.end(), [byte](const std::vector<uint8_t>& block) {
    return byte >= block.data() && byte < block.data() + block.size();
  });
}

}  // namespace calrt::conformance
