// SPDX-License-Identifier: Apache-2.0
// Bytes of KV, and what lies over what, against slow arithmetic and a map of bytes.
#include "kv/geometry.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/check.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

__extension__ typedef unsigned __int128 Wide;  // NOLINT: what 64 bits do not hold

uint64_t Geometry::* const kFields[] = {&Geometry::element_bytes, &Geometry::head_dim,
                                        &Geometry::kv_heads,      &Geometry::layers,
                                        &Geometry::cells,         &Geometry::lanes};
const char* const kNames[] = {"element_bytes", "head_dim", "kv_heads", "layers", "cells", "lanes"};

constexpr Geometry kReference{48, 4, 128, 2, 40'960, 1};

bool is(const Result<uint64_t>& got, Status code, const std::string& field) {
  return !got.ok() && got.error().code == code && got.error().message.rfind(field + "=", 0) == 0;
}

}  // namespace

TEST(forty_eight_layers_are_exactly_3_750_gib) {
  CHECK(*kReference.cell_bytes() == 98'304);
  CHECK(*kReference.lane_bytes() == uint64_t{3840} << 20);
  Geometry eight = kReference;
  eight.lanes = 8;
  CHECK(*eight.lane_bytes() == uint64_t{3840} << 20);
  CHECK(*eight.arena_bytes() == uint64_t{30} << 30);
}

TEST(a_factor_that_is_zero_is_named) {
  for (size_t f = 0; f < std::size(kFields); ++f) {
    Geometry geometry = kReference;
    geometry.*kFields[f] = 0;
    CHECK(is(geometry.arena_bytes(), Status::INVALID_ARGUMENT, kNames[f]));
    CHECK(geometry.cell_bytes().ok() == (f >= 4));
    CHECK(geometry.lane_bytes().ok() == (f >= 5));
  }
}

// At each field: the largest value that fits does, the next one is refused with its name.
TEST(each_field_overflows_where_the_product_does) {
  for (size_t f = 0; f < std::size(kFields); ++f) {
    Wide rest = 2;
    for (size_t g = 0; g < f; ++g) rest *= kReference.*kFields[g];
    Geometry geometry{1, 1, 1, 1, 1, 1};
    for (size_t g = 0; g < f; ++g) geometry.*kFields[g] = kReference.*kFields[g];
    const auto most = static_cast<uint64_t>(Wide{UINT64_MAX} / rest);
    geometry.*kFields[f] = most;
    CHECK(geometry.arena_bytes().ok() &&
          *geometry.arena_bytes() == static_cast<uint64_t>(rest * most));
    for (const uint64_t more : {most + 1, UINT64_MAX}) {
      geometry.*kFields[f] = more;
      CHECK(is(geometry.arena_bytes(), Status::OUT_OF_RANGE, kNames[f]));
    }
  }
}

TEST(random_sizes_are_the_product_or_refused) {
  std::mt19937_64 random(7);
  int fit = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    Geometry geometry;
    Wide product = 2;
    bool fits = true;
    const uint64_t bits = random() % 40;
    for (const auto field : kFields) {
      geometry.*field = 1 + (random() >> (63 - random() % (bits + 1)));
      product *= geometry.*field;
      fits = fits && product <= UINT64_MAX;
      if (!fits) product = 0;
    }
    const auto got = geometry.arena_bytes();
    CHECK(got.ok() == fits && (!fits || *got == static_cast<uint64_t>(product)));
    ++(fits ? fit : refused);
  }
  CHECK(fit > 2'000 && refused > 2'000);
}

TEST(extents_overlap_as_their_bytes_do) {
  std::mt19937 random(11);
  int apart = 0, over = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Extent> extents(1 + random() % 6);
    std::map<std::pair<uint64_t, uint64_t>, std::vector<size_t>> bytes;  // (space, address): whose
    for (size_t i = 0; i < extents.size(); ++i) {
      extents[i] = {random() % 2, random() % 48, random() % 9};
      for (uint64_t b = 0; b < extents[i].bytes; ++b)
        bytes[{extents[i].space, extents[i].begin + b}].push_back(i);
    }
    std::set<std::pair<size_t, size_t>> shared;
    for (const auto& [where, who] : bytes)
      for (const size_t a : who)
        for (const size_t b : who)
          if (a != b) shared.insert({a, b});
    const auto found = find_overlaps(extents);
    CHECK(found.ok());
    std::set<size_t> named;
    for (const Overlap& overlap : *found) {
      CHECK(shared.count({overlap.first, overlap.second}) == 1);
      CHECK(extents[overlap.first].begin <= extents[overlap.second].begin);
      named.insert(overlap.second);
    }
    CHECK(named.size() == found->size());
    // Each one that shares a byte with one below it is told.
    for (const auto& [a, b] : shared) {
      const bool below = std::pair(extents[a].begin, a) < std::pair(extents[b].begin, b);
      CHECK(!below || named.count(b) == 1);
    }
    ++(shared.empty() ? apart : over);
  }
  CHECK(apart > 1'000 && over > 1'000);
}

TEST(an_extent_past_the_end_is_refused) {
  const Extent last{0, UINT64_MAX - 4, 4}, past{0, UINT64_MAX - 4, 5}, all{0, 0, UINT64_MAX};
  CHECK(find_overlaps(std::vector<Extent>{last})->empty());
  CHECK(find_overlaps(std::vector<Extent>{last, past}).error().code == Status::OUT_OF_RANGE);
  CHECK((*find_overlaps(std::vector<Extent>{last, all}) == std::vector<Overlap>{{1, 0}}));
  CHECK(find_overlaps({})->empty());
}
