// SPDX-License-Identifier: Apache-2.0
// The typed form of a package and everything it points to.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "calrt/package.h"
#include "calrt/package_files.h"

namespace calrt {

// Graphs are expanded, with shapes and layouts at the largest allowed geometry. Deques keep
// addresses; the object never moves after build().
struct Package::Typed {
  static std::unique_ptr<Typed> build(const Manifest& manifest, const std::string& package_id,
                                      const PackageFiles& files);

  cald_package package{};

 private:
  void add_architecture(const Manifest& manifest);
  void add_artifacts(const Manifest& manifest, const PackageFiles& files);
  void add_tensors(const Manifest& manifest);
  void add_graphs(const Manifest& manifest);
  const char* keep(const std::string& text) { return strings_.emplace_back(text).c_str(); }

  std::deque<std::string> strings_;
  cald_arch arch_{};
  std::deque<cald_artifact> artifacts_;
  std::vector<const cald_artifact*> artifact_list_;
  std::deque<cald_tensor> tensors_;
  std::vector<const cald_tensor*> tensor_list_;
  std::deque<cald_io> ios_;
  std::deque<std::vector<const cald_io*>> io_lists_;
  std::deque<cald_graph> graphs_;
  std::vector<const cald_graph*> graph_list_;
};

}  // namespace calrt
