// SPDX-License-Identifier: Apache-2.0
// What is between the processes: messages, blocks, the ring. What makes no sense is refused.
#include <algorithm>
#include <cstring>
#include <random>

#include "layers/isolate/arena.h"
#include "layers/isolate/ring.h"
#include "layers/isolate/wire_structs.h"
#include "tests/check.h"
#include "tests/package_for_test.h"

using namespace calrt;
using namespace calrt::isolate;

TEST(a_package_arrives_whole) {
  std::vector<unsigned char> room(1 << 20);
  Writer out(room.data(), room.size());
  const cald_package& given = *PackageForTest::typed();
  cald_package copy = whole(given);
  carry(out, copy);
  CHECK(out.good());
  Pool pool;
  Reader in({reinterpret_cast<const char*>(room.data()), out.bytes()}, pool);
  cald_package taken{};
  carry(in, taken);
  CHECK(in.good() && in.left().empty());
  CHECK(taken.n_graphs == given.n_graphs && taken.arch != given.arch);
  for (uint32_t i = 0; i < given.n_graphs; ++i) {
    const cald_graph &a = *given.graphs[i], &b = *taken.graphs[i];
    CHECK(std::strcmp(a.name, b.name) == 0 && a.name != b.name && a.n_inputs == b.n_inputs);
    for (uint32_t k = 0; k < a.n_inputs; ++k)
      CHECK(a.inputs[k] != b.inputs[k] &&
            std::memcmp(a.inputs[k], b.inputs[k], sizeof(cald_io)) == 0);
  }
}

TEST(damaged_messages_are_refused_and_hurt_nobody) {
  std::vector<unsigned char> room(1 << 20);
  Writer out(room.data(), room.size());
  cald_package copy = whole(*PackageForTest::typed());
  carry(out, copy);
  const std::string whole_message(reinterpret_cast<const char*>(room.data()), out.bytes());
  for (size_t cut = 0; cut < whole_message.size(); cut += 7) {
    Pool pool;
    Reader in(std::string_view(whole_message).substr(0, cut), pool);
    cald_package taken{};
    carry(in, taken);
    CHECK(!in.good());
  }
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = whole_message;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    Pool pool;
    Reader in(damaged, pool);
    cald_package taken{};
    carry(in, taken);
    refused += !in.good();
    for (uint32_t g = 0; g < taken.n_graphs; ++g)
      if (taken.graphs[g] != nullptr)
        for (uint32_t i = 0; i < taken.graphs[g]->n_inputs; ++i)
          if (in.good() && taken.graphs[g]->inputs[i] != nullptr)
            CHECK(taken.graphs[g]->inputs[i]->rank <= CALD_MAX_RANK);
  }
  CHECK(refused > 100);
}

TEST(blocks_do_not_overlap_and_come_back) {
  constexpr uint64_t kBytes = 64 << 20;
  auto memory = SharedMemory::create();
  CHECK(memory.ok());
  Arena arena(memory->arena(), kBytes);
  std::mt19937 random(3);
  std::map<unsigned char*, uint64_t> live;
  for (int round = 0; round < 20000; ++round) {
    if (live.size() < 100 && random() % 3 != 0) {
      const uint64_t bytes = random() % (random() % 8 == 0 ? 1 << 20 : 5000),
                     align = 1u << random() % 14;
      auto* block = static_cast<unsigned char*>(arena.take(bytes, align));
      if (block == nullptr) continue;
      CHECK(reinterpret_cast<uintptr_t>(block) % align == 0);
      CHECK(block >= memory->arena() && block + bytes <= memory->arena() + kBytes);
      const auto after = live.lower_bound(block);
      CHECK(after == live.end() || block + bytes <= after->first);
      CHECK(after == live.begin() || std::prev(after)->first + std::prev(after)->second <= block);
      live[block] = std::max<uint64_t>(bytes, 1);
    } else if (!live.empty()) {
      auto at = live.begin();
      std::advance(at, random() % live.size());
      CHECK(arena.give(at->first) && !arena.give(at->first));
      live.erase(at);
    }
  }
  for (const auto& [block, bytes] : live) CHECK(arena.give(block));
  CHECK(arena.live() == 0 && arena.take(kBytes / 4, 64) != nullptr);
  CHECK(arena.take(kBytes, 64) == nullptr && arena.take(64, 3) == nullptr);
  CHECK(!arena.give(memory->arena() + 1) && !arena.give(nullptr));
}

TEST(free_neighbours_are_one_and_few_small_blocks_are_kept) {
  constexpr uint64_t kBytes = 1 << 20, kQuarter = kBytes / 4, kSmall = 64;
  auto memory = SharedMemory::create();
  for (const int first : {0, 1}) {  // whichever of two is given back first
    Arena arena(memory->arena(), kBytes);
    void* blocks[4];
    for (void*& block : blocks) block = arena.take(kQuarter, 64);
    CHECK(blocks[3] != nullptr && arena.take(1, 64) == nullptr);
    CHECK(arena.give(blocks[first]) && arena.give(blocks[1 - first]));
    CHECK(arena.take(2 * kQuarter, 64) == blocks[0]);
  }
  Arena arena(memory->arena(), kBytes);
  std::vector<void*> small;
  while (void* block = arena.take(kSmall, 64)) small.push_back(block);
  CHECK(small.size() == kBytes / kSmall);
  for (void* block : small) CHECK(arena.give(block));
  CHECK(arena.take(kBytes / 2, 64) != nullptr);  // what is kept is no more than a few
  // More than the mapping itself is aligned to.
  CHECK(Arena(memory->arena(), kBytes).take(kSmall, uint64_t{1} << 31) == nullptr);
}

TEST(the_ring_keeps_what_must_be_kept_and_refuses_nonsense) {
  auto memory = SharedMemory::create();
  RingState& state = memory->control().ring;
  RingWriter writer(&state, memory->ring(), -1);
  RingReader reader(&state, memory->ring());
  uint64_t read = 0, expected = 0;
  const auto take = [&](Record, std::string_view record) {
    read += record.size();
    return true;
  };
  for (int round = 0; round < 300; ++round) {
    const std::string text(static_cast<size_t>(round * 37 % 9000), 'x');
    writer.write(Record::LOG, text, true);
    expected += text.size();
    if (round % 7 == 0) CHECK(reader.read(take));
  }
  CHECK(reader.read(take) && read == expected);
  const std::string large(8000, 'y');
  for (int i = 0; i < 200; ++i) writer.write(Record::LOG, large, false);
  CHECK(reader.dropped() > 0);                                        // and none of it waited
  CHECK(state.written.load() - state.read.load() <= kRingBytes / 2);  // room for what must be kept
  CHECK(reader.read(take));
  state.written.store(state.written.load() + kRingBytes + 8);
  CHECK(!reader.read(take));
}

TEST(a_record_that_is_refused_is_the_last_one_taken) {
  auto memory = SharedMemory::create();
  RingWriter writer(&memory->control().ring, memory->ring(), -1);
  RingReader reader(&memory->control().ring, memory->ring());
  for (int i = 0; i < 3; ++i) writer.write(Record::LOG, std::string(50, 'x'), true);
  int given = 0;
  CHECK(!reader.read([&](Record, std::string_view) { return ++given < 2; }) && given == 2);
  CHECK(reader.position() == writer.position() / 3);
}

TEST(a_ring_that_contradicts_itself_gives_nothing_out) {
  for (const uint64_t beyond : {uint64_t{0}, kRingBytes, UINT64_MAX - 99}) {
    auto memory = SharedMemory::create();
    RingState& state = memory->control().ring;
    RingReader reader(&state, memory->ring());
    int given = 0;
    const auto take = [&](Record, std::string_view) { return ++given > 0; };
    RingWriter(&state, memory->ring(), -1).write(Record::LOG, std::string(50, 'x'), true);
    state.written.store(state.written.load() + beyond);
    if (beyond == 0) {  // a record that is longer than what was written
      const uint32_t bytes = 200;
      std::memcpy(memory->ring(), &bytes, sizeof bytes);
    }
    CHECK(!reader.read(take) && given == 0);
  }
}

TEST(a_pool_is_zeroed_to_the_last_byte) {
  for (size_t bytes = 1; bytes < 200; ++bytes) {
    for (int i = 0; i < 4; ++i) {  // what was freed is not zero
      std::vector<char> dirty(bytes / 16 * 16 + 16, 'x');
      (void)dirty;
    }
    Pool pool;
    const auto* block = static_cast<const char*>(pool.take(bytes));
    CHECK(std::all_of(block, block + bytes, [](char byte) { return byte == 0; }));
    const std::string text(bytes, 'a');
    CHECK(pool.keep(text) == text);
  }
}
