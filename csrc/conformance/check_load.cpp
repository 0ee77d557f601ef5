// SPDX-License-Identifier: Apache-2.0
// LOAD: a package becomes a model, and goes again.
#include <algorithm>
#include <set>
#include <thread>

#include "conformance/graph_call.h"
#include "conformance/package_copy.h"
#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

struct Heard {  // of a load's progress
  uint32_t calls = 0, cancel_at = 0;
  uint64_t last = 0;
  bool backwards = false, beyond = false;
  std::thread::id thread;
  static int32_t progress(void* user, uint64_t done, uint64_t total) {
    auto* heard = static_cast<Heard*>(user);
    heard->backwards = heard->backwards || done < heard->last;
    heard->beyond = heard->beyond || done > total;
    heard->last = done;
    heard->thread = std::this_thread::get_id();
    return ++heard->calls == heard->cancel_at ? 1 : 0;
  }
};

cald_status try_load(Kit& kit, const cald_load_options& options, ModelHandle* out) {
  cald_device* device = kit.device();
  const cald_package& package = kit.subject().package->typed();
  cald_model* made = nullptr;
  const cald_status status = kit.call("model_load", [&](cald_error* err) {
    return kit.table().model_load(device, &package, &options, &made, err);
  });
  REQUIRE((status == CALD_OK) == (made != nullptr), "model_load answered %d and gave %s", status,
          made == nullptr ? "no handle" : "a handle");
  *out = ModelHandle({made, &kit.table()});
  return status;
}

cald_model_info info_of(Kit& kit, const ModelHandle& model) {
  cald_model_info info{};
  info.struct_size = sizeof info;
  kit.ok("model_info",
         [&](cald_error* err) { return kit.table().model_info(model.get().pointer, &info, err); });
  return info;
}

CONFORMANCE_CHECK("LOAD-01", "") {
  const ResolvedLoad asked = kit.asked();
  const cald_model_info& is = kit.model_info();
  REQUIRE(is.lanes == asked.lanes && is.cells == asked.cells, "%u lanes of %u cells for %u of %u",
          is.lanes, is.cells, asked.lanes, asked.cells);
  REQUIRE(is.vocab == kit.subject().package->typed().arch->vocab, "vocab is %u, the package's %u",
          is.vocab, kit.subject().package->typed().arch->vocab);
  REQUIRE(asked.compute == CALD_COMPUTE_PACKAGE || is.compute == asked.compute,
          "compute is %d, asked for %d", is.compute, asked.compute);
  REQUIRE(is.kv_dtype == asked.kv_dtype, "kv_dtype is %d, asked for %d", is.kv_dtype,
          asked.kv_dtype);
  REQUIRE(is.logits_dtype == asked.logits_dtype, "logits_dtype is %d, asked for %d",
          is.logits_dtype, asked.logits_dtype);
}

CONFORMANCE_CHECK("LOAD-02", "") {
  const cald_model_info& is = kit.model_info();
  std::multiset<std::pair<int32_t, uint32_t>> wanted, found;
  for (const uint32_t batch : kit.asked().profiles) wanted.insert({CALD_GRAPH_DECODE, batch});
  for (const uint32_t chunk : kit.asked().chunks) wanted.insert({CALD_GRAPH_PREFILL, chunk});
  std::set<std::string> names;
  for (uint32_t g = 0; g < is.n_graphs; ++g) {
    const cald_graph& graph = *is.graphs[g];
    const bool decode = graph.kind == CALD_GRAPH_DECODE;
    REQUIRE(graph.name != nullptr && names.insert(graph.name).second,
            "graph %u has no name, or that of another", g);
    REQUIRE(decode ? graph.chunk == 0 : graph.batch == 1, "%s: batch %u, chunk %u", graph.name,
            graph.batch, graph.chunk);
    found.insert({graph.kind, decode ? graph.batch : graph.chunk});
  }
  REQUIRE(found == wanted, "the load asked for %zu graphs; %zu are there, or others", wanted.size(),
          found.size());
}

void check_io(const cald_graph& graph, const cald_io& io, uint32_t device_domains) {
  const char* role = role_name(io.role);
  const char* name = graph.name;
  const uint32_t size = dtype_size(io.dtype);
  REQUIRE(size != 0, "%s, %s: dtype %d", name, role, io.dtype);
  REQUIRE(io.rank >= 1 && io.rank <= CALD_MAX_RANK, "%s, %s: rank %u", name, role, io.rank);
  REQUIRE(io.align != 0 && (io.align & (io.align - 1)) == 0, "%s, %s: align %llu", name, role,
          static_cast<ull>(io.align));
  REQUIRE(io.domains != 0, "%s, %s may be bound in no domain", name, role);
  REQUIRE(device_domains == 0 || (io.domains & device_domains) != 0,
          "%s, %s binds domains %#x, the device has %#x", name, role, io.domains, device_domains);
  if (io.layout.undetermined != 0) return;
  REQUIRE(io.layout.n_axes >= 1 && io.layout.n_axes <= CALD_MAX_AXES, "%s, %s: %u axes", name, role,
          io.layout.n_axes);
  uint64_t end = size;
  uint64_t room[CALD_MAX_RANK];
  std::fill(std::begin(room), std::end(room), 1);
  for (uint32_t d = 0; d < io.rank; ++d)
    REQUIRE(io.shape[d] != 0, "%s, %s: dimension %u is 0", name, role, d);
  for (uint32_t a = 0; a < io.layout.n_axes; ++a) {
    const cald_axis& axis = io.layout.axes[a];
    REQUIRE(axis.dim < io.rank, "%s, %s: axis %u is of dimension %u of %u", name, role, a, axis.dim,
            io.rank);
    REQUIRE(axis.divisor != 0, "%s, %s: axis %u divides by 0", name, role, a);
    REQUIRE(axis.stride % size == 0 && (axis.extent <= 1 || axis.stride >= size),
            "%s, %s: axis %u has a stride of %llu, elements are of %u bytes", name, role, a,
            static_cast<ull>(axis.stride), size);
    room[axis.dim] *= axis.extent;
    end += axis.stride * largest_part(axis, io.shape[axis.dim]);
  }
  for (uint32_t d = 0; d < io.rank; ++d)
    REQUIRE(room[d] >= io.shape[d], "%s, %s: the axes of dimension %u have room for %llu of %llu",
            name, role, d, static_cast<ull>(room[d]), static_cast<ull>(io.shape[d]));
  REQUIRE(end <= io.layout.bytes, "%s, %s: the last element ends at %llu of %llu bytes", name, role,
          static_cast<ull>(end), static_cast<ull>(io.layout.bytes));
  const Result<void> injective = check_injective(io.layout, size);
  REQUIRE(injective.ok(), "%s, %s: %s", name, role, injective.error().message.c_str());
}

CONFORMANCE_CHECK("LOAD-03", "") {
  const cald_model_info& is = kit.model_info();
  for (uint32_t g = 0; g < is.n_graphs; ++g) {
    const cald_graph& graph = *is.graphs[g];
    std::set<int32_t> roles;
    const auto look = [&](const cald_io* io) {
      REQUIRE(io != nullptr, "%s: an input or output is NULL", graph.name);
      REQUIRE(roles.insert(io->role).second, "%s: role %d twice", graph.name, io->role);
      check_io(graph, *io, kit.info().domains);
    };
    for (uint32_t i = 0; i < graph.n_inputs; ++i) look(graph.inputs[i]);
    for (uint32_t i = 0; i < graph.n_outputs; ++i) look(graph.outputs[i]);
    const uint32_t n = graph.kind == CALD_GRAPH_DECODE ? graph.batch : graph.chunk;
    for (uint32_t i = 0; i < graph.n_inputs; ++i) {
      const cald_io& io = *graph.inputs[i];
      if (io.role != CALD_ROLE_TOKENS && io.role != CALD_ROLE_POSITIONS) continue;
      REQUIRE(io.dtype == CALD_I32 && io.rank == 1 && io.shape[0] == n,
              "%s: %s is %llu of dtype %d, %u i32 are due", graph.name, role_name(io.role),
              static_cast<ull>(io.shape[0]), io.dtype, n);
    }
    REQUIRE(roles.count(CALD_ROLE_TOKENS) == 1 && roles.count(CALD_ROLE_LOGITS) == 1,
            "%s has no tokens or no logits", graph.name);
    const cald_io& logits = *graph.outputs[0];
    REQUIRE(logits.dtype == is.logits_dtype, "%s: logits are of dtype %d, the model says %d",
            graph.name, logits.dtype, is.logits_dtype);
    REQUIRE(logits.rank >= 1 && logits.shape[logits.rank - 1] == is.vocab,
            "%s: logits have %llu columns, the vocabulary %u tokens", graph.name,
            static_cast<ull>(logits.shape[logits.rank - 1]), is.vocab);
    REQUIRE(graph.kind != CALD_GRAPH_DECODE || logits.shape[0] == graph.batch,
            "%s: logits have %llu rows", graph.name, static_cast<ull>(logits.shape[0]));
    REQUIRE((graph.lane_map == CALD_LANE_MAP_ANY) == (roles.count(CALD_ROLE_LANES) == 1),
            "%s: lane_map %d, and %s input lanes", graph.name, graph.lane_map,
            roles.count(CALD_ROLE_LANES) == 1 ? "an" : "no");
  }
}

void refuse(Kit& kit, const char* what, const cald_load_options& options) {
  ModelHandle model;
  REQUIRE(try_load(kit, options, &model) != CALD_OK, "a load with %s was accepted", what);
}

CONFORMANCE_CHECK("LOAD-04", "geometry") {
  kit.known("null", "", "null keeps nothing of its lanes, so that any number will do");
  kit.close_model();
  const LoadAsk good(kit.asked());
  cald_load_options bad = good.options;
  bad.lanes = 0;
  refuse(kit, "0 lanes", bad);
  bad = good.options;
  bad.cells = 0;
  refuse(kit, "0 cells", bad);
  bad = good.options;
  bad.lanes = UINT32_MAX;
  refuse(kit, "4294967295 lanes", bad);
}

CONFORMANCE_CHECK("LOAD-04", "words") {
  kit.known("null", "", "null places nothing anywhere");
  kit.close_model();
  const LoadAsk good(kit.asked());
  cald_load_options bad = good.options;
  bad.parallel = "conformance";
  refuse(kit, "parallel=conformance", bad);
  bad = good.options;
  bad.placement = "conformance:7";
  refuse(kit, "placement=conformance:7", bad);
}

CONFORMANCE_CHECK("LOAD-04", "graphs") {
  kit.close_model();
  const LoadAsk good(kit.asked());
  cald_load_options bad = good.options;
  bad.n_profiles = bad.n_chunks = 0;
  refuse(kit, "no graph at all", bad);
}

CONFORMANCE_CHECK("LOAD-05", "") {
  kit.close_model();
  LoadAsk ask(kit.asked());
  Heard heard;
  ask.options.user = &heard;
  ask.options.progress = Heard::progress;
  const ModelHandle model = kit.load(ask.options);
  REQUIRE(heard.calls != 0, "the load was not told of");
  REQUIRE(heard.thread == std::this_thread::get_id(), "progress was called on another thread");
  REQUIRE(!heard.backwards, "the bytes done went down");
  REQUIRE(!heard.beyond, "more bytes were done than there are");
}

CONFORMANCE_CHECK("LOAD-06", "") {
  kit.close_model();
  LoadAsk ask(kit.asked());
  Heard heard;
  heard.cancel_at = 1;
  ask.options.user = &heard;
  ask.options.progress = Heard::progress;
  const uint64_t before = kit.host().live_blocks();
  ModelHandle model;
  const cald_status status = try_load(kit, ask.options, &model);
  REQUIRE(status == CALD_CANCELLED, "a cancelled load was answered %d, not CANCELLED (%d)", status,
          CALD_CANCELLED);
  REQUIRE(heard.calls == 1, "progress was called %u times after it had said no", heard.calls - 1);
  REQUIRE(kit.host().live_blocks() == before, "a cancelled load keeps %lld blocks of the host",
          static_cast<long long>(kit.host().live_blocks() - before));
  kit.model();  // the next one is a load like any other
}

CONFORMANCE_CHECK("LOAD-07", "") {
  kit.close_model();
  auto ask = std::make_unique<LoadAsk>(kit.asked());
  auto copy = std::make_unique<PackageCopy>(kit.subject().package->typed());
  cald_device* device = kit.device();
  cald_model* made = nullptr;
  kit.ok("model_load", [&](cald_error* err) {
    return kit.table().model_load(device, &copy->package(), &ask->options, &made, err);
  });
  const ModelHandle model({made, &kit.table()});
  copy->scribble();
  std::fill(ask->asked.profiles.begin(), ask->asked.profiles.end(), 0x5A5A5A5Au);
  std::fill(ask->asked.chunks.begin(), ask->asked.chunks.end(), 0x5A5A5A5Au);
  std::memset(static_cast<void*>(&ask->options), 0x5A, sizeof ask->options);
  const cald_model_info info = info_of(kit, model);
  const cald_package& real = kit.subject().package->typed();
  REQUIRE(info.vocab == real.arch->vocab, "vocab is %u after the package is gone", info.vocab);
  for (uint32_t g = 0; g < info.n_graphs; ++g) {
    const cald_graph& graph = *info.graphs[g];
    const auto same = [&](const cald_graph* other) {
      return std::strcmp(other->name, graph.name) == 0 && other->n_inputs == graph.n_inputs &&
             other->inputs[0]->shape[0] == graph.inputs[0]->shape[0];
    };
    const auto kept = [&](const void* pointer) { return copy->is_own(pointer); };
    REQUIRE(!kept(info.graphs) && !kept(&graph) && !kept(graph.name) && !kept(graph.inputs) &&
                !kept(graph.inputs[0]),
            "graph %u points into the package, which is CALL", g);
    REQUIRE(std::any_of(real.graphs, real.graphs + real.n_graphs, same),
            "graph %u is none of the package's after the package is gone", g);
  }
}

CONFORMANCE_CHECK("LOAD-08", "") {
  NEEDS_ENTRY(kit, model_footprint);
  const LoadAsk ask(kit.asked());
  kit.close_model();
  cald_device* device = kit.device();
  cald_footprint footprint{};
  footprint.struct_size = sizeof footprint;
  const uint64_t blocks = kit.host().live_blocks();
  kit.ok("model_footprint", [&](cald_error* err) {
    return kit.table().model_footprint(device, &kit.subject().package->typed(), &ask.options,
                                       &footprint, err);
  });
  REQUIRE(kit.host().live_blocks() == blocks, "model_footprint keeps memory of the host");
  const cald_model_info& info = kit.model_info();
  const uint64_t told = footprint.host_bytes + footprint.device_bytes;
  REQUIRE(told >= info.weight_bytes && told >= info.kv_bytes,
          "a footprint of %llu bytes, and the model has %llu of weights and %llu of KV",
          static_cast<ull>(told), static_cast<ull>(info.weight_bytes),
          static_cast<ull>(info.kv_bytes));
  cald_load_options more = ask.options;
  if (ask.options.cells < 2 || info.kv_bytes == 0) return;
  more.cells = ask.options.cells / 2;
  cald_footprint less{};
  less.struct_size = sizeof less;
  const cald_status status = kit.call("model_footprint", [&](cald_error* err) {
    return kit.table().model_footprint(device, &kit.subject().package->typed(), &more, &less, err);
  });
  REQUIRE(status != CALD_OK || less.host_bytes + less.device_bytes < told,
          "half of the cells have the same footprint of %llu bytes", static_cast<ull>(told));
}

// What is free on the device, where it says so in bytes of its own; 0 = it does not.
uint64_t device_memory_free(Kit& kit, uint64_t device_bytes) {
  if (device_bytes == 0) return 0;  // the model lies in the host's memory, which others use too
  cald_device* device = kit.device();
  cald_device_info info{};
  info.struct_size = sizeof info;
  kit.ok("device_info",
         [&](cald_error* err) { return kit.table().device_info(device, &info, err); });
  return info.memory_free;
}

CONFORMANCE_CHECK("LOAD-09", "") {
  const LoadAsk ask(kit.asked());
  kit.close_model();
  cald_device* device = kit.device();
  cald_footprint footprint{};
  footprint.struct_size = sizeof footprint;
  if (CONFORMANCE_HAS(kit, model_footprint))
    kit.ok("model_footprint", [&](cald_error* err) {
      return kit.table().model_footprint(device, &kit.subject().package->typed(), &ask.options,
                                         &footprint, err);
    });
  const uint64_t blocks = kit.host().live_blocks();
  const uint64_t free = device_memory_free(kit, footprint.device_bytes);
  for (int round = 0; round < 2; ++round) {
    {
      const ModelHandle model = kit.load(ask.options);
      if (const uint64_t now = device_memory_free(kit, footprint.device_bytes); free != 0)
        REQUIRE(now + footprint.device_bytes <= free,
                "a model of %llu bytes is loaded, and %llu of %llu are free",
                static_cast<ull>(footprint.device_bytes), static_cast<ull>(now),
                static_cast<ull>(free));
    }
    REQUIRE(kit.host().live_blocks() == blocks, "an unloaded model keeps %lld blocks of the host",
            static_cast<long long>(kit.host().live_blocks() - blocks));
    const uint64_t now = device_memory_free(kit, footprint.device_bytes);
    REQUIRE(now == free, "%llu bytes were free before the load, %llu are after the unload",
            static_cast<ull>(free), static_cast<ull>(now));
  }
}

}  // namespace
}  // namespace calrt::conformance
