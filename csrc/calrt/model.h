// SPDX-License-Identifier: Apache-2.0
// A loaded generation of a package, its graphs, and the buffers a graph's job is bound to.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/device.h"
#include "calrt/driver.h"
#include "calrt/package.h"

namespace calrt {

// What load() was asked for; unset = the package's default. Never clamped.
struct LoadRequest {
  std::optional<uint32_t> lanes, cells;
  std::vector<uint32_t> profiles, chunks;  // empty = all that the package allows
  std::string compute, kv_dtype, logits_dtype, parallel, placement;  // "" = default
  // Called at >= 2 Hz on the loading thread; false cancels.
  std::function<bool(uint64_t done, uint64_t total)> progress;
  // Capabilities that are not to be used of this model, each with the reason: "cancel",
  // "binding_sets", "footprint", "kv_clear", "lane_copy", "range_copy", "k_rotate", "kv_read",
  // "kv_write". What the device has is then as if it had it not, and a caller is told the reason.
  std::map<std::string, std::string> withheld;
  bool allow_standin = false;  // on a driver that is none of calrt's own (D25)
};

class Model;

// Fixed buffers for every role of one graph, reused job after job. One job at a time: a second
// submit is INVALID_STATE until the first has ended, and after a lost job until the driver answers.
// Not thread-safe apart from that.
class BindingSet {
 public:
  BindingSet(const BindingSet&) = delete;
  BindingSet& operator=(const BindingSet&) = delete;

  // Buffer of a role, null when the graph lacks it. `bytes` of the binding may be set smaller
  // (logit_rows and logits of a prefill).
  Buffer* buffer(int32_t role) const;
  std::shared_ptr<Buffer> share(int32_t role) const;
  int32_t* ints(int32_t role) const;  // host address of an i32 input
  // R of logit_rows; 0 = unbound, one row returned. More than max_rows() is refused at submit.
  void bind_rows(uint32_t rows);
  uint32_t rows() const { return rows_; }
  uint32_t max_rows() const { return max_rows_; }  // 0: the graph has no logit_rows
  uint32_t graph() const { return graph_; }
  const std::vector<cald_binding>& bindings() const { return bindings_; }
  const std::shared_ptr<Model>& model() const { return model_; }
  // What the driver made of it, null where it makes nothing of sets.
  cald_binding_set* handle() const { return known_.get().pointer; }
  // A job holds the buffers: until it has ended, or, after a lost one, until the driver answers.
  bool busy() const { return job_seq_.load(std::memory_order_acquire) != 0; }
  LoanState loan_state() const { return loan_state_of(job_seq_); }
  // Binds a buffer of the caller's in place of its own; the driver then no longer knows the set
  // from before. Refuses a busy set, and a buffer of another device, domain, size or alignment.
  Result<void> rebind(int32_t role, std::shared_ptr<Buffer> buffer);
  // The views that live of its buffers.
  void count_exports(ExportCensus* census) const;

 private:
  friend class Model;
  friend class Job;
  friend class JobControl;
  BindingSet() = default;
  struct Place {
    std::shared_ptr<Buffer> buffer;
    int32_t role = 0;
    uint64_t bytes = 0, row_bytes = 0;  // row_bytes 0: always bound whole
  };
  std::shared_ptr<Model> model_;
  uint32_t graph_ = 0, rows_ = 0, max_rows_ = 0;
  std::vector<Place> places_;
  std::vector<cald_binding> bindings_;
  BindingSetHandle known_;  // after places_: the driver forgets the set before its buffers go
  // Of the job that holds the buffers, 0 = none, with kLostUse once it is lost. Caller's buffers
  // see it too.
  std::shared_ptr<BindingUse> use_ = std::make_shared<BindingUse>(0);
  BindingUse& job_seq_ = *use_;
};

class Model : public std::enable_shared_from_this<Model> {
 public:
  static Result<std::shared_ptr<Model>> load(std::shared_ptr<Device> device,
                                             std::shared_ptr<const Package> package,
                                             const LoadRequest& request);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const cald_model_info& info() const { return info_; }
  const Package& package() const { return *package_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  cald_model* handle() const { return handle_.get().pointer; }
  uint64_t generation() const { return generation_; }
  // The device's session that runs its jobs: the first one that serves the first chip it is placed
  // on.
  uint32_t session_index() const { return session_index_; }
  // Index of a graph by expanded name ("decode_b4"), or INVALID_ARGUMENT listing the names.
  Result<uint32_t> graph_index(const std::string& name) const;
  const cald_graph& graph(uint32_t index) const { return *info_.graphs[index]; }
  // Indices of the decode graphs by rising batch, of the prefill graphs by rising chunk.
  const std::vector<uint32_t>& decode_graphs() const { return decode_; }
  const std::vector<uint32_t>& prefill_graphs() const { return prefill_; }

  // New buffers for one graph in the domain and alignment it asks for.
  Result<std::unique_ptr<BindingSet>> make_bindings(uint32_t graph);
  // What KV the model has and which operations it can do; UNSUPPORTED when the driver cannot tell.
  Result<cald_kv_info> kv_info();

  // UNSUPPORTED with the reason if the load was told not to use a capability.
  Result<void> check_granted(const char* capability) const;

  // Stops new jobs, unloads with the last holder. Idempotent.
  void close();
  bool closed() const { return closed_.load(); }
  Result<void> check_open() const;  // MODEL_UNLOADED once closed
  // The same, and DEVICE_LOST once the driver has said so since the load: what lay in the device's
  // memory is gone. Lock-free.
  Result<void> check_alive() const;

 private:
  Model() = default;
  Result<void> read_info(const ResolvedLoad& asked);
  // Makes buffers that are bound again and again known to the driver; empty if it has no such
  // entry.
  Result<BindingSetHandle> make_known(uint32_t graph, const std::vector<cald_binding>& bindings);
  std::shared_ptr<Device> device_;  // before handle_, as package_: what the driver's model uses
  std::shared_ptr<const Package> package_;
  ModelHandle handle_;
  cald_model_info info_{};
  uint64_t generation_ = 0;
  uint64_t losses_ = 0;  // of the device, when the load began
  uint32_t session_index_ = 0;
  std::vector<uint32_t> decode_, prefill_;
  std::map<std::string, std::string> withheld_;  // constant after load()
  std::atomic<bool> closed_{false};
};

}  // namespace calrt
