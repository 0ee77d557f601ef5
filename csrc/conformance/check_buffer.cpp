// SPDX-License-Identifier: Apache-2.0
// BUF: memory of a device, and copies outside of jobs.
#include <algorithm>
#include <cstddef>

#include "conformance/graph_call.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;
constexpr uint32_t kDomains[] = {CALD_DOMAIN_HOST, CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_DEVICE,
                                 CALD_DOMAIN_SHARED};

// The domains that the device states; those it takes, where it states none.
std::vector<uint32_t> domains_of(Kit& kit) {
  std::vector<uint32_t> all;
  const uint32_t stated = kit.info().domains;
  for (const uint32_t domain : kDomains)
    if ((stated & domain) != 0) all.push_back(domain);
  if (all.empty()) all.push_back(CALD_DOMAIN_HOST);
  return all;
}

cald_status alloc(Kit& kit, uint32_t domain, uint64_t bytes, uint64_t align, BufferHandle* out) {
  cald_device* device = kit.device();
  cald_buffer* made = nullptr;
  const cald_status status = kit.call("buffer_alloc", [&](cald_error* err) {
    return kit.table().buffer_alloc(device, domain, bytes, align, &made, err);
  });
  REQUIRE((status == CALD_OK) == (made != nullptr), "buffer_alloc answered %d and gave %s", status,
          made == nullptr ? "no handle" : "a handle");
  *out = BufferHandle({made, &kit.table()});
  return status;
}

BufferHandle make(Kit& kit, uint32_t domain, uint64_t bytes, uint64_t align = 64) {
  BufferHandle out;
  const cald_status status =
      alloc(kit, domain, kit.padded(domain, bytes), kit.aligned(domain, align), &out);
  REQUIRE(status == CALD_OK, "%llu bytes of domain %u: buffer_alloc answered %d: %s",
          static_cast<ull>(bytes), domain, status, kit.message().c_str());
  return out;
}

// The two ways to move bytes.
enum class Way { OLD, TRANSFER };

cald_status move(Kit& kit, Way way, int32_t direction, cald_buffer* buffer, uint64_t offset,
                 void* host, uint64_t bytes, uint64_t* moved = nullptr) {
  const cald_driver_table& table = kit.table();
  if (way == Way::TRANSFER) {
    cald_transfer what{sizeof what, direction, buffer, offset, host, bytes, 0x5A5A5A5A};
    const cald_status status = kit.call(
        "buffer_transfer", [&](cald_error* err) { return table.buffer_transfer(&what, err); });
    if (moved != nullptr) *moved = what.moved;
    return status;
  }
  if (moved != nullptr) *moved = bytes;
  if (direction == CALD_TO_DEVICE)
    return kit.call("buffer_h2d", [&](cald_error* err) {
      return table.buffer_h2d(buffer, offset, host, bytes, err);
    });
  return kit.call("buffer_d2h", [&](cald_error* err) {
    return table.buffer_d2h(buffer, offset, host, bytes, err);
  });
}

std::vector<Way> ways(Kit& kit) {
  if (CONFORMANCE_HAS(kit, buffer_transfer)) return {Way::OLD, Way::TRANSFER};
  return {Way::OLD};
}

Bytes pattern(uint64_t bytes, uint32_t seed) {
  Bytes out(bytes);
  uint32_t x = seed * 2654435761u + 1;
  for (uint8_t& byte : out) {
    x = x * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(x >> 24);
  }
  return out;
}

void put(Kit& kit, Way way, cald_buffer* to, uint64_t offset, Bytes bytes) {
  const Bytes before = bytes;
  uint64_t moved = 0;
  const cald_status status =
      move(kit, way, CALD_TO_DEVICE, to, offset, bytes.data(), bytes.size(), &moved);
  REQUIRE(status == CALD_OK, "%zu bytes to %llu: %d: %s", bytes.size(), static_cast<ull>(offset),
          status, kit.message().c_str());
  REQUIRE(bytes == before, "a copy to the device changed its source");
  if (moved != bytes.size())
    broken_rule("BUF-06", "%llu of %zu bytes moved, says the transfer", static_cast<ull>(moved),
                bytes.size());
}

Bytes get(Kit& kit, Way way, cald_buffer* from, uint64_t offset, uint64_t bytes) {
  Bytes out(bytes + 32, 0xA7);
  uint64_t moved = 0;
  const cald_status status = move(kit, way, CALD_TO_HOST, from, offset, out.data(), bytes, &moved);
  REQUIRE(status == CALD_OK, "%llu bytes from %llu: %d: %s", static_cast<ull>(bytes),
          static_cast<ull>(offset), status, kit.message().c_str());
  REQUIRE(std::all_of(out.end() - 32, out.end(), [](uint8_t byte) { return byte == 0xA7; }),
          "a copy of %llu bytes to the host wrote behind them", static_cast<ull>(bytes));
  if (moved != bytes)
    broken_rule("BUF-06", "%llu of %llu bytes moved, says the transfer", static_cast<ull>(moved),
                static_cast<ull>(bytes));
  out.resize(bytes);
  return out;
}

CONFORMANCE_CHECK("BUF-01", "") {
  bool mapped = false;
  for (const uint32_t domain : domains_of(kit)) {
    for (const uint64_t align : {16, 64, 256, 4096}) {
      const BufferHandle buffer = make(kit, domain, 100, align);
      if (!CONFORMANCE_HAS(kit, buffer_map)) continue;
      void* address = nullptr;
      const cald_status status = kit.call("buffer_map", [&](cald_error* err) {
        return kit.table().buffer_map(buffer.get().pointer, &address, err);
      });
      if (status != CALD_OK) continue;
      mapped = true;
      REQUIRE(reinterpret_cast<uintptr_t>(address) % align == 0,
              "a buffer aligned to %llu lies at %p", static_cast<ull>(align), address);
    }
  }
  if (!mapped) skip("no buffer of this device has an address on the host");
}

CONFORMANCE_CHECK("BUF-02", "") {
  for (const uint32_t domain : domains_of(kit)) {
    for (const uint64_t bytes : {uint64_t{1000}, uint64_t{1} << 20}) {
      for (int round = 0; round < 3; ++round) {
        const BufferHandle buffer = make(kit, domain, bytes);
        const Bytes fresh = get(kit, Way::OLD, buffer.get().pointer, 0, bytes);
        const auto dirty =
            std::find_if(fresh.begin(), fresh.end(), [](uint8_t b) { return b != 0; });
        REQUIRE(dirty == fresh.end(), "byte %lld of a new buffer of domain %u is %#x, not 0",
                static_cast<long long>(dirty - fresh.begin()), domain, *dirty);
        put(kit, Way::OLD, buffer.get().pointer, 0, Bytes(bytes, 0xEE));
      }
    }
  }
}

CONFORMANCE_CHECK("BUF-03", "") {
  NEEDS_ENTRY(kit, buffer_rules);
  cald_device* device = kit.device();
  const std::vector<uint32_t> known = domains_of(kit);
  for (const uint32_t domain : kDomains) {
    cald_buffer_rules rules{};
    rules.struct_size = sizeof rules;
    const cald_status status = kit.call("buffer_rules", [&](cald_error* err) {
      return kit.table().buffer_rules(device, domain, &rules, err);
    });
    const bool stated = std::find(known.begin(), known.end(), domain) != known.end();
    REQUIRE((status == CALD_OK) == stated, "domain %u is %s, and buffer_rules answered %d", domain,
            stated ? "stated" : "not stated", status);
    if (!stated) continue;
    REQUIRE(rules.domain == domain, "the rules of domain %u say they are of %u", domain,
            rules.domain);
    REQUIRE(rules.align != 0 && (rules.align & (rules.align - 1)) == 0,
            "align %llu is no power of two", static_cast<ull>(rules.align));
    REQUIRE(rules.padding != 0, "padding is 0: sizes cannot be multiples of it");
    if (rules.max_bytes == 0 || rules.max_bytes > uint64_t{1} << 62) continue;
    BufferHandle too_large;
    REQUIRE(alloc(kit, domain, rules.max_bytes + rules.padding, rules.align, &too_large) != CALD_OK,
            "max_bytes is %llu, and %llu were allocated", static_cast<ull>(rules.max_bytes),
            static_cast<ull>(rules.max_bytes + rules.padding));
  }
}

CONFORMANCE_CHECK("BUF-04", "") {
  const uint32_t stated = kit.info().domains;
  if (stated == 0) skip("the device states no domains");
  for (const uint32_t domain : kDomains) {
    BufferHandle buffer;
    const cald_status status =
        alloc(kit, domain, kit.padded(domain, 64), kit.aligned(domain, 64), &buffer);
    REQUIRE((status == CALD_OK) == ((stated & domain) != 0),
            "domains are %#x, and a buffer of domain %u was answered %d", stated, domain, status);
  }
  for (const uint32_t domain : {0u, 64u, 3u}) {
    BufferHandle buffer;
    REQUIRE(alloc(kit, domain, 64, 64, &buffer) != CALD_OK, "a buffer of domain %u was allocated",
            domain);
  }
}

struct Range {
  uint64_t offset, bytes;
};

// `outside` makes of a buffer's size what does not lie in it.
void out_of_range(Kit& kit, Range (*outside)(uint64_t size)) {
  for (const uint32_t domain : domains_of(kit)) {
    const uint64_t size = kit.padded(domain, 1000);
    const auto [offset, bytes] = outside(size);
    const BufferHandle buffer = make(kit, domain, size);
    put(kit, Way::OLD, buffer.get().pointer, 0, pattern(size, 7));
    for (const Way way : ways(kit)) {
      for (const int32_t direction : {CALD_TO_DEVICE, CALD_TO_HOST}) {
        Bytes host(bytes, 0xA7);
        uint64_t moved = 0;
        const cald_status status =
            move(kit, way, direction, buffer.get().pointer, offset, host.data(), bytes, &moved);
        REQUIRE(status == CALD_OUT_OF_RANGE,
                "%llu bytes at %llu of a buffer of %llu were answered %d, not OUT_OF_RANGE (%d)",
                static_cast<ull>(bytes), static_cast<ull>(offset), static_cast<ull>(size), status,
                CALD_OUT_OF_RANGE);
        REQUIRE(host == Bytes(bytes, 0xA7), "a refused copy wrote to the host");
        if (way == Way::TRANSFER && moved != 0)
          broken_rule("BUF-06", "a refused copy moved %llu bytes, says the transfer",
                      static_cast<ull>(moved));
      }
    }
    REQUIRE(get(kit, Way::OLD, buffer.get().pointer, 0, size) == pattern(size, 7),
            "a refused copy wrote to the buffer");
  }
}

CONFORMANCE_CHECK("BUF-05", "bytes") {
  out_of_range(kit, [](uint64_t size) { return Range{0, size + 1}; });
}
CONFORMANCE_CHECK("BUF-05", "offset") {
  out_of_range(kit, [](uint64_t size) { return Range{size - 100, 101}; });
}
CONFORMANCE_CHECK("BUF-05", "behind") {
  out_of_range(kit, [](uint64_t size) { return Range{size + 1, 1}; });
}
CONFORMANCE_CHECK("BUF-05", "overflow") {
  out_of_range(kit, [](uint64_t) { return Range{UINT64_MAX - 15, 32}; });
}

CONFORMANCE_CHECK("BUF-06", "") {
  NEEDS_ENTRY(kit, buffer_transfer);
  for (const uint32_t domain : domains_of(kit)) {
    const BufferHandle buffer = make(kit, domain, 4096);
    for (const uint64_t bytes : {1, 63, 64, 4095}) {
      put(kit, Way::TRANSFER, buffer.get().pointer, 1, pattern(bytes, 3));
      get(kit, Way::TRANSFER, buffer.get().pointer, 1, bytes);
    }
  }
}

CONFORMANCE_CHECK("BUF-07", "") {
  constexpr uint64_t kBytes = 70'001;
  for (const uint32_t domain : domains_of(kit)) {
    for (const Way in : ways(kit)) {
      for (const Way out : ways(kit)) {
        const BufferHandle buffer = make(kit, domain, kBytes);
        Bytes expected(kBytes, 0);
        const struct {
          uint64_t offset, bytes;
        } pieces[] = {{0, kBytes}, {1, 7}, {63, 65}, {4095, 4098}, {kBytes - 1, 1}};
        uint32_t seed = 0;
        for (const auto& piece : pieces) {
          const Bytes source = pattern(piece.bytes, ++seed);
          put(kit, in, buffer.get().pointer, piece.offset, source);
          std::copy(source.begin(), source.end(),
                    expected.begin() + static_cast<ptrdiff_t>(piece.offset));
          const Bytes all = get(kit, out, buffer.get().pointer, 0, kBytes);
          const auto differs = std::mismatch(all.begin(), all.end(), expected.begin()).first;
          REQUIRE(all == expected, "domain %u: after %llu bytes to %llu, byte %lld is wrong",
                  domain, static_cast<ull>(piece.bytes), static_cast<ull>(piece.offset),
                  static_cast<long long>(differs - all.begin()));
          REQUIRE(get(kit, out, buffer.get().pointer, piece.offset, piece.bytes) == source,
                  "domain %u: %llu bytes at %llu come back changed", domain,
                  static_cast<ull>(piece.bytes), static_cast<ull>(piece.offset));
        }
      }
    }
  }
}

CONFORMANCE_CHECK("BUF-08", "") {
  NEEDS_ENTRY(kit, buffer_map);
  constexpr uint64_t kBytes = 5000;
  bool any = false;
  for (const uint32_t domain : domains_of(kit)) {
    const BufferHandle buffer = make(kit, domain, kBytes);
    void *address = nullptr, *again = nullptr;
    const auto map = [&](void** out) {
      return kit.call("buffer_map", [&](cald_error* err) {
        return kit.table().buffer_map(buffer.get().pointer, out, err);
      });
    };
    if (const cald_status status = map(&address); status != CALD_OK) {
      REQUIRE(status == CALD_UNSUPPORTED, "a buffer of domain %u: buffer_map answered %d", domain,
              status);
      REQUIRE(domain == CALD_DOMAIN_DEVICE, "host memory (domain %u) has no address", domain);
      continue;
    }
    any = true;
    REQUIRE(address != nullptr, "buffer_map answered OK and gave no address");
    REQUIRE(map(&again) == CALD_OK && again == address,
            "a buffer's address is not always the same");
    const Bytes first = pattern(kBytes, 11), second = pattern(kBytes, 12);
    std::copy(first.begin(), first.end(), static_cast<uint8_t*>(address));
    REQUIRE(get(kit, Way::OLD, buffer.get().pointer, 0, kBytes) == first,
            "domain %u: what was written at the mapped address is not in the buffer", domain);
    put(kit, Way::OLD, buffer.get().pointer, 0, second);
    REQUIRE(std::equal(second.begin(), second.end(), static_cast<const uint8_t*>(address)),
            "domain %u: what was copied in does not show at the mapped address", domain);
  }
  if (!any) skip("no buffer of this device has an address on the host");
}

CONFORMANCE_CHECK("BUF-09", "") {
  NEEDS_ENTRY(kit, buffer_transfer);
  const BufferHandle buffer = make(kit, domains_of(kit).front(), 256);
  put(kit, Way::OLD, buffer.get().pointer, 0, pattern(256, 5));
  for (const int32_t direction : {0, 3, -1}) {
    Bytes host(256, 0xA7);
    const cald_status status =
        move(kit, Way::TRANSFER, direction, buffer.get().pointer, 0, host.data(), 256);
    REQUIRE(status == CALD_INVALID_ARGUMENT, "direction %d was answered %d", direction, status);
    REQUIRE(host == Bytes(256, 0xA7) &&
                get(kit, Way::OLD, buffer.get().pointer, 0, 256) == pattern(256, 5),
            "direction %d was refused, and bytes were moved", direction);
  }
}

CONFORMANCE_CHECK("BUF-10", "") {
  for (const uint64_t bytes : {UINT64_MAX, uint64_t{1} << 63, UINT64_MAX - 4096}) {
    BufferHandle buffer;
    const cald_status status = alloc(kit, domains_of(kit).front(), bytes, 64, &buffer);
    REQUIRE(status != CALD_OK, "a buffer of %llu bytes was allocated", static_cast<ull>(bytes));
  }
}

CONFORMANCE_CHECK("BUF-11", "") {
  for (const uint32_t domain : domains_of(kit)) {
    std::vector<BufferHandle> buffers;
    const uint64_t sizes[] = {100, 64, 1000, 1, 4096, 33};
    for (const uint64_t bytes : sizes) buffers.push_back(make(kit, domain, bytes));
    // In either order, as a buffer that is written later hides what was written to it before.
    for (const bool backwards : {false, true}) {
      for (uint32_t i = 0; i < buffers.size(); ++i) {
        const uint32_t at = backwards ? static_cast<uint32_t>(buffers.size()) - 1 - i : i;
        put(kit, Way::OLD, buffers[at].get().pointer, 0, pattern(sizes[at], at));
      }
      for (uint32_t i = 0; i < buffers.size(); ++i)
        REQUIRE(get(kit, Way::OLD, buffers[i].get().pointer, 0, sizes[i]) == pattern(sizes[i], i),
                "domain %u: a buffer of %llu bytes changed when its neighbours were written",
                domain, static_cast<ull>(sizes[i]));
    }
    buffers.erase(buffers.begin() + 2);
    REQUIRE(get(kit, Way::OLD, buffers[2].get().pointer, 0, 1) == pattern(1, 3),
            "domain %u: a buffer changed when another was freed", domain);
  }
}

CONFORMANCE_CHECK("BUF-12", "") {
  NEEDS_ENTRY(kit, buffer_state);
  const BufferHandle buffer = make(kit, domains_of(kit).front(), 256);
  cald_buffer_state state{};
  state.struct_size = sizeof state;
  kit.ok("buffer_state", [&](cald_error* err) {
    return kit.table().buffer_state(buffer.get().pointer, &state, err);
  });
  REQUIRE(state.state == CALD_BUFFER_IDLE && state.job_seq == 0,
          "a new buffer is in state %d, of job %llu", state.state, static_cast<ull>(state.job_seq));
}

}  // namespace
}  // namespace calrt::conformance
