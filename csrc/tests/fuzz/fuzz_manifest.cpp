// SPDX-License-Identifier: Apache-2.0
// Property: whatever bytes manifest.json has, opening the package ends in a verdict that can be
// told (valid JSON, a load status if rejected), and a package that passes is whole: every pointer
// is there, every tensor is in its file, the default load options are allowed ones.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "calrt/driver.h"
#include "calrt/model.h"
#include "calrt/package.h"
#include "package_fixture.h"

namespace {

using calrt::LoadRequest;
using calrt::Package;
using calrt::Status;

// Ends the process, as libFuzzer wants its findings told.
void must(bool holds, const char* property, const Package& package) {
  if (holds) return;
  std::fprintf(stderr, "broken property: %s\n%s\n", property,
               package.verdict().to_json().substr(0, 4000).c_str());
  std::abort();
}

// The package's folder: the fixture's own files, and p00..p15 for other manifests to name.
const calrt::testing::PackageFixture& fixture() {
  static const calrt::testing::PackageFixture* const made = [] {
    static calrt::testing::PackageFixture folder;
    for (int i = 0; i < 16; ++i) {
      char name[8];
      std::snprintf(name, sizeof name, "p%02d", i);
      folder.write(name, std::string(64, static_cast<char>('a' + i)));
    }
    return &folder;
  }();
  return *made;
}

bool is_text(const char* text) { return text != nullptr && std::strlen(text) < 1 << 20; }

void check_io(const cald_io& io, const Package& package) {
  must(io.rank >= 1 && io.rank <= CALD_MAX_RANK, "an io has a rank", package);
  must(io.align != 0 && (io.align & (io.align - 1)) == 0, "align is a power of two", package);
  must(io.layout.n_axes <= CALD_MAX_AXES, "a layout's axes fit", package);
  must(io.layout.bytes > 0, "a layout has bytes", package);
  for (uint32_t i = 0; i < io.rank; ++i) must(io.shape[i] > 0, "no empty dimension", package);
}

void check_typed(const Package& package) {
  const cald_package& typed = package.typed();
  must(typed.struct_size == sizeof typed && is_text(typed.name) && is_text(typed.id) &&
           typed.arch != nullptr && is_text(typed.arch->name),
       "the typed form is filled", package);
  for (uint32_t i = 0; i < typed.n_artifacts; ++i) {
    const cald_artifact& artifact = *typed.artifacts[i];
    must(is_text(artifact.id) && is_text(artifact.role), "an artifact has id and role", package);
  }
  must(typed.weights < static_cast<int32_t>(typed.n_artifacts), "weights are an artifact", package);
  for (uint32_t i = 0; i < typed.n_tensors; ++i) {
    const cald_tensor& tensor = *typed.tensors[i];
    must(typed.weights >= 0 && is_text(tensor.name), "a tensor has a name and a file", package);
    const uint64_t size = typed.artifacts[typed.weights]->bytes;
    must(tensor.offset <= size && tensor.bytes <= size - tensor.offset,
         "a tensor lies inside its file", package);
  }
  for (uint32_t g = 0; g < typed.n_graphs; ++g) {
    const cald_graph& graph = *typed.graphs[g];
    must(is_text(graph.name) && is_text(graph.share_group), "a graph has its names", package);
    must(graph.batch > 0 && (graph.kind == CALD_GRAPH_DECODE) == (graph.chunk == 0),
         "a graph has a size", package);
    for (uint32_t i = 0; i < graph.n_inputs; ++i) check_io(*graph.inputs[i], package);
    for (uint32_t i = 0; i < graph.n_outputs; ++i) check_io(*graph.outputs[i], package);
  }
}

void check_options(const Package& package) {
  must(package.resolve({}).ok(), "the default options are allowed", package);
  LoadRequest request;
  request.lanes = 3;
  request.cells = 100;
  request.profiles = {1, 3};
  request.chunks = {7};
  request.compute = "int8";
  const auto answer = package.resolve(request);
  must(answer.ok() || !answer.error().message.empty(), "a refusal says why", package);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fixture().write_manifest(std::string(reinterpret_cast<const char*>(data), size));
  const auto package = Package::open(fixture().directory());
  const calrt::Verdict& verdict = package->verdict();
  must(nlohmann::json::accept(verdict.to_json()), "the verdict is JSON", *package);
  if (!verdict.rejected()) {
    check_typed(*package);
    check_options(*package);
    return 0;
  }
  const Status status = verdict.error().code;
  must(status == Status::VERSION_MISMATCH || status == Status::PACKAGE_NOT_FOUND ||
           status == Status::PACKAGE_CORRUPT || status == Status::PACKAGE_REJECTED,
       "a rejection has a load status", *package);
  must(verdict.rejects > 0 && !verdict.findings.empty() && !verdict.error().message.empty(),
       "a rejection has a reason", *package);
  must(!package->resolve({}).ok(), "a rejected package resolves nothing", *package);
  return 0;
}
