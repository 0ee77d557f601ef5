// SPDX-License-Identifier: Apache-2.0
// Opening, option texts, the typed form, files that may not be followed, and mutated manifests.
#include "calrt/package.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "calrt/allowed.h"
#include "calrt/json_tape.h"
#include "calrt/model.h"
#include "calrt/package_files.h"
#include "check.h"
#include "package_fixture.h"

using namespace calrt;
using calrt::testing::PackageFixture;

namespace {

bool has(const Verdict& verdict, const std::string& code) {
  return std::any_of(verdict.findings.begin(), verdict.findings.end(),
                     [&code](const Finding& finding) { return finding.code == code; });
}

// What opening the fixture with another manifest finds.
std::string first_reject(const PackageFixture& fixture, const std::string& manifest) {
  fixture.write_manifest(manifest);
  const auto package = Package::open(fixture.directory());
  return package->verdict().rejected() ? package->verdict().error().message : "";
}

TEST(a_good_package_passes_and_is_typed) {
  PackageFixture fixture;
  const auto package = Package::open(fixture.directory());
  const Verdict& verdict = package->verdict();
  if (verdict.rejected()) std::fprintf(stderr, "%s\n", verdict.error().message.c_str());
  CHECK(verdict.verdict == "pass" && verdict.findings.empty());
  CHECK(verdict.files == 2 && verdict.hashed_bytes == verdict.bytes);
  if (verdict.rejected()) return;
  const cald_package& typed = package->typed();
  CHECK(std::string(typed.name) == "fixture" && std::string(typed.id) == verdict.package_id);
  CHECK(typed.weights == 1 && typed.artifacts[1]->fd >= 0 && typed.n_tensors == 12);
  CHECK(typed.arch->ffn == 24 && typed.arch->rope_base == 10000.0 && typed.arch->norm_eps == 1e-05);
  CHECK(typed.n_graphs == 4);
  const cald_graph& prefill = *typed.graphs[3];
  CHECK(std::string(prefill.name) == "prefill_t64" && prefill.chunk == 64 && prefill.batch == 1);
  CHECK(prefill.n_inputs == 5 && prefill.inputs[4]->optional == 1);
  CHECK(prefill.outputs[0]->shape[0] == 64 && prefill.outputs[0]->shape[1] == 32);
  CHECK(prefill.outputs[0]->layout.bytes == 64 * 32 * 4);
  CHECK(std::string(typed.graphs[1]->name) == "decode_b4" && typed.graphs[1]->batch == 4);
  CHECK(*package->read("vocab", 100) == "vocabulary");
  CHECK(package->read("vocab", 4).error().code == Status::OUT_OF_RANGE);
  CHECK(package->read("nope", 4).error().code == Status::INVALID_ARGUMENT);
}

TEST(files_stay_open_when_the_directory_goes) {
  std::shared_ptr<const Package> package;
  {
    PackageFixture fixture;
    package = Package::open(fixture.directory());
  }
  CHECK(*package->read("vocab", 100) == "vocabulary");
}

TEST(options_default_and_are_refused_by_name) {
  PackageFixture fixture;
  const auto package = Package::open(fixture.directory());
  const auto resolved = package->resolve({});
  CHECK(resolved.ok());
  if (!resolved) return;
  CHECK(resolved->lanes == 1 && resolved->cells == 256);
  CHECK(resolved->compute == CALD_COMPUTE_F32 && resolved->kv_dtype == CALD_F32);
  CHECK(resolved->logits_dtype == CALD_F32 && resolved->parallel == "none");
  CHECK(resolved->profiles == std::vector<uint32_t>({1, 4}));
  CHECK(resolved->chunks == std::vector<uint32_t>({16, 64}));

  LoadRequest bf16;
  bf16.compute = "bf16";
  CHECK(package->resolve(bf16)->kv_dtype == CALD_BF16);
  bf16.logits_dtype = "f32";
  bf16.profiles = {4, 4};
  CHECK(package->resolve(bf16)->logits_dtype == CALD_F32);
  CHECK(package->resolve(bf16)->profiles == std::vector<uint32_t>({4}));

  const auto refuses = [&](auto change, Status code, const std::string& message) {
    LoadRequest request;
    change(request);
    const auto answer = package->resolve(request);
    CHECK(!answer.ok());
    if (answer.ok()) return;
    CHECK(answer.error().code == code);
    if (answer.error().message != message) {
      std::fprintf(stderr, "found:  %s\nwanted: %s\n", answer.error().message.c_str(),
                   message.c_str());
      CHECK(false);
    }
  };
  refuses([](LoadRequest& r) { r.cells = 50000; }, Status::OUT_OF_RANGE,
          "cells=50000 not allowed: 64…256 in steps of 64; nearest 256");
  refuses([](LoadRequest& r) { r.cells = 100; }, Status::OUT_OF_RANGE,
          "cells=100 not allowed: 64…256 in steps of 64; nearest 128");
  refuses([](LoadRequest& r) { r.lanes = 0; }, Status::OUT_OF_RANGE,
          "lanes=0 not allowed: 1…8 in steps of 1; nearest 1");
  refuses([](LoadRequest& r) { r.kv_dtype = "f16"; }, Status::DTYPE_MISMATCH,
          "kv_dtype=f16 not allowed: f32, bf16");
  refuses([](LoadRequest& r) { r.kv_dtype = "q8_0"; }, Status::DTYPE_MISMATCH,
          "kv_dtype=q8_0 not allowed: f32, bf16");
  refuses([](LoadRequest& r) { r.compute = "int8"; }, Status::UNSUPPORTED,
          "compute=int8 not allowed: f32, bf16");
  refuses([](LoadRequest& r) { r.placement = "chip:1"; }, Status::UNSUPPORTED,
          "placement=chip:1 not allowed: any");
  refuses([](LoadRequest& r) { r.profiles = {1, 3}; }, Status::OUT_OF_RANGE,
          "profiles=3 not allowed: 1, 4; nearest 4");

  fixture.write_manifest(fixture.with(R"("allowed":{"lanes":{"min":1,"max":8,"step":1})",
                                      R"("allowed":{"lanes":[1])"));
  const auto fixed = Package::open(fixture.directory());
  LoadRequest eight;
  eight.lanes = 8;
  CHECK(fixed->resolve(eight).error().message ==
        "lanes=8 not allowed: this package has lanes = 1 (fixed)");
  CHECK(fixed->resolve({})->lanes == 1);
}

TEST(a_refused_package_resolves_nothing) {
  PackageFixture fixture;
  fixture.write_manifest("{");
  const auto package = Package::open(fixture.directory());
  CHECK(package->resolve({}).error().code == Status::PACKAGE_CORRUPT);
  const auto absent = Package::open(fixture.directory() + "/nowhere");
  CHECK(absent->verdict().error().code == Status::PACKAGE_NOT_FOUND);
}

TEST(cells_default_to_what_the_model_was_trained_for) {
  const Allowed range{{}, 64, 1000, 64};
  CHECK(largest_up_to(range, 250) == 192 && largest_up_to(range, 5000) == 960);
  CHECK(largest_up_to(range, 10) == 64 && largest_up_to({{4, 9, 2}, 0, 0, 0}, 8) == 4);
  CHECK(range.largest() == 960 && range.contains(128) && !range.contains(130));
  CHECK(!first_outside({{}, 64, 128, 64}, range) && first_outside({{}, 32, 64, 32}, range) == 32);
  CHECK(first_outside({{}, 1, 2000000000, 1}, {{1, 2, 3}, 0, 0, 0}) == 2000000000u);
  CHECK(first_outside({{}, 1, 5, 1}, {{1, 2, 5}, 0, 0, 0}) == 3u);
  CHECK(allowed_problem({{}, 1, 4, 0}) == "step is 0" && !allowed_problem({{}, 5, 4, 1}).empty());
}

TEST(no_path_or_link_leads_out) {
  PackageFixture fixture;
  fixture.write("inner", "x");
  CHECK(mkdir((fixture.directory() + "/sub").c_str(), 0755) == 0);
  fixture.write("sub/file", "y");
  CHECK(symlink("inner", (fixture.directory() + "/link").c_str()) == 0);
  CHECK(symlink("/", (fixture.directory() + "/root").c_str()) == 0);
  CHECK(symlink("sub", (fixture.directory() + "/folder").c_str()) == 0);
  CHECK(mkfifo((fixture.directory() + "/fifo").c_str(), 0644) == 0);
  const int directory = open(fixture.directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (bool walk : {false, true}) {
    int error = 0;
    for (const char* good : {"inner", "sub/file", "fifo", "sub"}) {
      const int fd = open_beneath(directory, good, walk, &error);
      CHECK(fd >= 0);
      if (fd >= 0) close(fd);
    }
    for (const char* bad : {"link", "root/etc/passwd", "folder/file", "../x", "/etc/passwd",
                            "inner/file", "sub/../../x"}) {
      CHECK(open_beneath(directory, bad, walk, &error) < 0);
      CHECK(error != 0);
    }
    CHECK(open_beneath(directory, "absent/file", walk, &error) < 0 && error == ENOENT);
  }
  close(directory);
}

TEST(numbers_keep_their_token) {
  Findings findings;
  JsonTape tape;
  CHECK(tape.parse(R"([ -0, 18446744073709551616,1e3,1.50 , 7])", &findings));
  std::vector<std::string> tokens;
  for (uint32_t item = tape.first(0); item != JsonTape::kNone; item = tape.following(item)) {
    tokens.emplace_back(tape.value(item));
  }
  CHECK(tokens == std::vector<std::string>({"-0", "18446744073709551616", "1e3", "1.50", "7"}));
  CHECK(tape.parse("12", &findings) && tape.value(0) == "12");
  CHECK(tape.parse(R"({"a/b":{"~":[1,[2]]}})", &findings));
  CHECK(tape.pointer(4) == "/a~1b/~0/1" && findings.rejects() == 0);
}

TEST(limits_hold_while_reading) {
  const auto code = [](const std::string& source) -> std::string {
    Findings findings;
    JsonTape tape;
    const bool complete = tape.parse(source, &findings);
    const auto all = findings.finish();
    CHECK(complete == (all.empty() || all[0].code == "C03"));
    return all.empty() ? "" : all[0].code;
  };
  CHECK(code(std::string(16, '[') + std::string(16, ']')).empty());
  CHECK(code(std::string(17, '[') + std::string(17, ']')) == "C04");
  CHECK(code(std::string(5000000, '[')) == "C04");
  CHECK(code(std::string("[\"") + std::string(65536, 'a') + "\"]").empty());
  CHECK(code(std::string("[\"") + std::string(65537, 'a') + "\"]") == "C04");
  CHECK(code("[\"\\u0000\"]") == "C04");
  CHECK(code("{\"a\":1,\"\\u0061\":2}") == "C03");
  std::string many = "[0";
  for (size_t i = 0; i < JsonTape::kMaxNodes; ++i) many += ",0";
  CHECK(code(many + "]") == "C04");
  for (const char* bad : {"", " ", "\xEF\xBB\xBF{}", "[\"\xC0\xAF\"]", "[NaN]", "[1]/* */", "[1]x",
                          "[1e400]", "[\"\\ud800\"]", "[1,]", "[01]", "[\"a\nb\"]", "{\"a\"}"}) {
    CHECK(code(bad) == "C02");
  }
}

TEST(errors_say_where) {
  PackageFixture fixture;
  CHECK(first_reject(fixture, "{\n \"manifest\": nul}").find("line 2, column 17") !=
        std::string::npos);
  CHECK(first_reject(fixture, fixture.with("\"minor\":0", "\"minor\":0,\n\"minor\":0")) ==
        "C03: key 'minor' twice, in lines 1 and 2 (/minor)");
  CHECK(first_reject(fixture, fixture.with("lane_map", "lanemap")).find("'lane_map'") !=
        std::string::npos);
  CHECK(first_reject(fixture, fixture.with("manifest-1", "manifest-2")).find("C06") == 0);
}

TEST(hostile_sizes_end_quickly) {
  PackageFixture fixture;
  const auto package_with = [&](const char* from, const std::string& to) {
    fixture.write_manifest(fixture.with(from, to));
    return Package::open(fixture.directory());
  };
  CHECK(has(package_with("\"layers\":1", "\"layers\":2147483647")->verdict(), "D19"));
  std::string batches = "1";
  for (int i = 2; i <= 200; ++i) {
    batches += ',';
    batches += std::to_string(i);
  }
  CHECK(package_with("\"batch\":[1,4]", std::string("\"batch\":[") + batches + "]")
            ->verdict()
            .graphs == 202);
  std::string unknown;
  for (int i = 0; i < 100000; ++i) {
    unknown += "\"u";
    unknown += std::to_string(i);
    unknown += "\":0,";
  }
  const auto full = package_with("{\"manifest\"", std::string("{") + unknown + "\"manifest\"");
  CHECK(full->verdict().findings.size() == 21);
  CHECK(full->verdict().findings.back().message == "and 99980 more");
}

// Whatever happens to the manifest, opening answers; a package that still passes can be typed.
TEST(mutated_manifests_never_crash) {
  PackageFixture fixture;
  const char* asked = std::getenv("CALRT_FUZZ_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 3000;
  std::mt19937 random(7);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  const std::vector<std::string> words = {"null",
                                          "-1",
                                          "0",
                                          "[]",
                                          "{}",
                                          "true",
                                          "1e400",
                                          "9007199254740992",
                                          "\"\"",
                                          "1e3",
                                          "\"B\"",
                                          "2147483647",
                                          "4294967297",
                                          "\"x-a\"",
                                          "[[[[]]]]",
                                          "\"\\u0000\"",
                                          ",",
                                          "\"x\":",
                                          "}",
                                          "]",
                                          "18446744073709551615"};
  int passed = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string text = fixture.manifest();
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          text.erase(at, 1 + below(40));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(60)));
          break;
        default: {  // a whole value for another
          const size_t begin = text.find(':', at);
          if (begin == std::string::npos) break;
          const size_t end = text.find_first_of(",]}", begin);
          if (end != std::string::npos) {
            text.replace(begin + 1, end - begin - 1, words[below(words.size())]);
          }
        }
      }
    }
    fixture.write_manifest(text);
    const auto package = Package::open(fixture.directory());
    CHECK(!package->verdict().to_json().empty());
    if (package->verdict().rejected()) {
      CHECK(!package->verdict().error().message.empty());
    } else {
      ++passed;
      CHECK(package->typed().n_graphs > 0 && package->resolve({}).ok());
    }
  }
  CHECK(passed < rounds / 2);
}

}  // namespace
