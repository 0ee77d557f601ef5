// SPDX-License-Identifier: Apache-2.0
// Errors as text, text from outside, the log's sink.
#include <string>

#include "base/checked.h"
#include "base/log.h"
#include "base/result.h"
#include "base/utf8.h"
#include "tests/check.h"

using namespace calrt;

TEST(error_text_shows_both_numbers) {
  CHECK(error_text({Status::KV_NO_CAPACITY, 0, "4 of 4 lanes busy", ""}) ==
        "KV_NO_CAPACITY (calrt 17): 4 of 4 lanes busy");
  CHECK(error_text({Status::KV_NO_CAPACITY, 9, "full", ""}) ==
        "KV_NO_CAPACITY (calrt 17, native 9): full");
  CHECK(error_text({Status::INTERNAL, 13, "", "", true})
            .starts_with("INTERNAL (calrt 29, native 13 unmapped): "));
  CHECK(error_text({Status::INTERNAL, -1, "x", "", true}) ==
        "INTERNAL (calrt 29, native -1 unmapped): x");
  CHECK(error_text({Status::INTERNAL, 0, "x", "", true}) ==
        "INTERNAL (calrt 29, native 0 unmapped): x");
}

TEST(an_error_without_text_gets_the_status_sentence) {
  CHECK(error_text({Status::QUEUE_FULL, 0, "", ""}) == "QUEUE_FULL (calrt 16): the queue is full");
}

TEST(every_status_has_a_row) {
  for (int32_t i = 0; i < kStatusCount; ++i) CHECK(status_row(i).number == i);
  for (const int32_t wild : {-1, 30, INT32_MIN, INT32_MAX}) CHECK(status_row(wild).number == 29);
}

TEST(ill_formed_text_is_made_safe) {
  const auto clean = [](const std::string& text) { return clean_utf8(text.data(), text.size()); };
  CHECK(clean("plain") == "plain");
  CHECK(clean("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(clean("a\xff"
              "b") == "a?b");
  CHECK(clean("cut \xe2\x82") == "cut ??");    // a sequence that ends early
  CHECK(clean("\xc0\x80") == "??");            // overlong NUL
  CHECK(clean("\xed\xa0\x80") == "???");       // a surrogate
  CHECK(clean("\xf5\x80\x80\x80") == "????");  // beyond U+10FFFF
  const char unended[3] = {'a', 'b', 'c'};
  CHECK(clean_utf8(unended, 3) == "abc");
}

static std::string heard;

TEST(log_goes_to_the_sink) {
  set_log_sink([](const LogRecord& record) {
    heard = std::to_string(record.level) + record.component + record.text;
    heard += std::to_string(record.job_seq) + "/" + std::to_string(record.requests.size());
  });
  log_line(LOG_WARNING, "part", "n=%d", 5);
  CHECK(heard == "30partn=50/0");
  log_text(LOG_INFO, nullptr, nullptr);
  CHECK(heard == "20?0/0");
  const uint64_t requests[2] = {8, 9};
  log_record({LOG_ERROR, "x", "y", 7, requests});
  CHECK(heard == "40xy7/2");
  set_log_sink(nullptr);
}

TEST(result_carries_value_or_error) {
  const Result<int> good = 3;
  CHECK(good.ok() && *good == 3);
  Result<int> bad = fail(Status::OUT_OF_RANGE, "n=%d", 9);
  CHECK(!bad.ok() && bad.error().message == "n=9");
  bool thrown = false;
  try {
    (void)std::move(bad).value();
  } catch (const Exception& e) {
    thrown = e.error.code == Status::OUT_OF_RANGE;
  }
  CHECK(thrown);
}

TEST(checked_arithmetic_refuses_what_does_not_fit) {
  uint64_t out = 0;
  CHECK(checked_round_up(65, 64, &out) && out == 128);
  CHECK(!checked_round_up(UINT64_MAX, 64, &out));
  CHECK(!checked_mul(uint64_t{1} << 33, uint64_t{1} << 33, &out));
  CHECK(!checked_add(UINT64_MAX, 1, &out));
  CHECK(!checked_sub(1, 2, &out));
  CHECK(ceil_div(UINT64_MAX, 2) == (uint64_t{1} << 63));
}
