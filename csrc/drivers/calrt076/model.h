// SPDX-License-Identifier: Apache-2.0
// A model that the SDK has loaded, in calrt's words.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/calrt076/device.h"

namespace calrt::calrt076 {

// One graph as the SDK describes it. Immutable; `graph` points into the rest.
struct ModelGraph {
  cald_graph graph{};
  uint32_t index = 0;  // the SDK's
  std::string name;
  std::vector<cald_io> ios;  // inputs in the SDK's order, then the logits
  std::vector<const cald_io*> inputs, outputs;

  const cald_io& logits() const { return *outputs.front(); }
};

}  // namespace calrt::calrt076

struct cald_model {
  static calrt::Result<std::unique_ptr<cald_model>> load(cald_device* device,
                                                         const cald_package* package,
                                                         const cald_load_options* options);
  // Waits until no run is outstanding, however long: to unload under a run is misuse of the SDK.
  ~cald_model();
  void describe(cald_model_info* out) const;

  cald_device* device = nullptr;
  calrt_model* handle = nullptr;
  calrt::calrt076::sdk::ModelFacts facts{};
  uint32_t lanes = 0, cells = 0;
  int32_t kv_dtype = 0;  // as asked for; facts.kv_dtype is what the cells are made of
  std::vector<std::unique_ptr<calrt::calrt076::ModelGraph>> graphs;
  std::vector<const cald_graph*> graph_list;

  void run_begins();
  void run_ended();

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  uint32_t runs_ = 0;
};

namespace calrt::calrt076 {

// The one directory that holds the package's artifacts, by their descriptors: the SDK loads a
// directory, the ABI hands over open files.
Result<std::string> package_directory(const cald_package& package);

// The SDK's description as a graph of calrt; what calrt cannot bind is refused by name.
Result<std::unique_ptr<ModelGraph>> describe_graph(const sdk::Graph& graph, uint32_t index,
                                                   const std::string& name, uint32_t vocab);

}  // namespace calrt::calrt076
