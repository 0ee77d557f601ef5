// SPDX-License-Identifier: Apache-2.0
// Published vectors (FIPS 180-4 examples), every split of a message, and the two kernels equal.
#include "base/sha256.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/check.h"

using namespace calrt;

namespace {

std::string of(const std::string& text) { return sha256_hex(text.data(), text.size()); }

std::vector<uint8_t> noise(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  uint32_t x = 12345;
  for (auto& byte : out) {
    x = x * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(x >> 24);
  }
  return out;
}

}  // namespace

TEST(published_vectors) {
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(
      of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
         "mnopqrsmnopqrstnopqrstu") ==
      "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(of(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(streaming_equals_whole) {
  const auto data = noise(300);
  for (size_t length = 0; length <= data.size(); length += 1) {
    const std::string whole = sha256_hex(data.data(), length);
    for (const size_t step : {size_t{1}, size_t{55}, size_t{63}, size_t{64}, size_t{65}}) {
      Sha256 sha;
      for (size_t at = 0; at < length; at += step)
        sha.update(data.data() + at, std::min(step, length - at));
      CHECK(hex(sha.digest()) == whole);
    }
  }
}

TEST(digest_starts_a_new_stream) {
  Sha256 sha;
  sha.update("junk", 4);
  (void)sha.digest();
  sha.update("abc", 3);
  CHECK(hex(sha.digest()) == of("abc"));
}

TEST(kernels_agree) {
  if (!detail::sha256_ni_available()) return;
  const auto data = noise(64 * 100 + 1);
  for (const size_t offset : {size_t{0}, size_t{1}})  // unaligned input too
    for (size_t blocks = 0; blocks <= 100; ++blocks) {
      uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
      detail::sha256_blocks_portable(a, data.data() + offset, blocks);
      detail::sha256_blocks_ni(b, data.data() + offset, blocks);
      CHECK(std::memcmp(a, b, sizeof a) == 0);
    }
}
