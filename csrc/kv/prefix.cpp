// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/out_of_memory.h"
#include "base/sha256.h"

namespace calrt::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are summed up as they lie");

template <class T>
void add(Sha256& sha, const T& value) {
  sha.update(&value, sizeof value);
}

// Every field has a fixed size or its length before it, so that no two scopes give the same bytes.
PrefixKey root_key(const PrefixScope& scope, uint32_t every) {
  Sha256 sha;
  sha.update("calrt prefix v1", 16);
  add(sha, scope.package_sha256);
  add(sha, scope.model);
  add(sha, every);
  add(sha, uint64_t{scope.salt.size()});
  sha.update(scope.salt.data(), scope.salt.size());
  return sha.digest();
}

}  // namespace

Result<Prefix> make_prefix(PrefixScope scope, std::vector<int32_t> tokens, uint32_t every) {
  return or_out_of_memory([&]() -> Result<Prefix> {
    if (every == 0)
      return fail(Status::INVALID_ARGUMENT, "every=0: a prefix needs a key every 1 token or more");
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0)
        return fail(Status::INVALID_ARGUMENT, "tokens[%zu]=%d: a token id is 0 or more", i,
                    tokens[i]);
    }
    Prefix prefix{std::move(scope), every, {}, std::move(tokens)};
    const size_t steps = prefix.tokens.size() / every;
    prefix.keys.reserve(steps);
    PrefixKey key = root_key(prefix.scope, every);
    for (size_t i = 0; i < steps; ++i) {
      Sha256 sha;
      add(sha, key);
      sha.update(prefix.tokens.data() + i * every, size_t{every} * sizeof(int32_t));
      key = sha.digest();
      prefix.keys.push_back(key);
    }
    return prefix;
  });
}

int compare_keys(const Prefix& a, const Prefix& b) {
  const size_t n = std::min(a.keys.size(), b.keys.size());
  const int order = n == 0 ? 0 : std::memcmp(a.keys.data(), b.keys.data(), n * sizeof(PrefixKey));
  if (order != 0) return order;
  return a.keys.size() < b.keys.size() ? -1 : a.keys.size() > b.keys.size();
}

const char* prefix_place_name(PrefixPlace place) {
  return place == PrefixPlace::LANE ? "lane" : "host";
}

const char* prefix_event_name(PrefixEventKind kind) {
  switch (kind) {
    case PrefixEventKind::STORED:
      return "stored";
    case PrefixEventKind::REMOVED:
      return "removed";
    case PrefixEventKind::EVICTED:
      return "evicted";
    case PrefixEventKind::HOSTED:
      return "hosted";
    case PrefixEventKind::CLEARED:
      return "cleared";
  }
  return "?";
}

}  // namespace calrt::kv
