// SPDX-License-Identifier: Apache-2.0
// Events on their way to their reader: its descriptor is readable as long as some are pending.
#include <poll.h>

#include <utility>

#include "engine/completion_fd.h"
#include "engine/ring.h"
#include "tests/check.h"
#include "tests/failing_new.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

bool readable(int fd) {
  pollfd look{fd, POLLIN, 0};
  return poll(&look, 1, 0) == 1;
}
bool readable(const EventRing& ring) { return readable(ring.fd()); }

void publish(EventRing& ring, std::vector<uint64_t> requests) {
  std::vector<Event> events;
  for (const uint64_t request : requests) {
    Event event{};
    event.kind = EventKind::ENDED;
    event.request = request;
    events.push_back(std::move(event));
  }
  ring.publish(&events);
  CHECK(events.empty());
}

std::vector<uint64_t> requests(const std::vector<Event>& events) {
  std::vector<uint64_t> all;
  for (const Event& event : events) all.push_back(event.request);
  return all;
}

}  // namespace

TEST(events_come_in_order_and_the_descriptor_tells) {
  EventRing ring(4);
  CHECK(ring.open().ok() && !readable(ring) && ring.drain().empty() && ring.room() == 4);
  publish(ring, {});
  CHECK(!readable(ring));
  publish(ring, {1, 2});
  publish(ring, {3});
  CHECK(readable(ring) && ring.room() == 1);
  CHECK((requests(ring.drain()) == std::vector<uint64_t>{1, 2, 3}));
  CHECK(!readable(ring) && ring.room() == 4);
  publish(ring, {4});
  CHECK(readable(ring) && requests(ring.drain()) == std::vector<uint64_t>{4});
}

// A reader that has no memory must learn of what is pending by its descriptor: nobody signals it
// again before the ring was empty.
TEST(a_drain_without_memory_leaves_all_as_it_was) {
  EventRing ring(4);
  CHECK(ring.open().ok());
  publish(ring, {1, 2});
  std::vector<Event> got;
  const int failed = each_allocation_fails(
      [&] {
        try {
          got = ring.drain();
        } catch (const std::bad_alloc&) {
          got.clear();
        }
      },
      [&] { CHECK(got.empty() && readable(ring) && ring.room() == 2); });
  CHECK(failed > 0 && (requests(got) == std::vector<uint64_t>{1, 2}) && !readable(ring));
}

TEST(ends_that_are_not_fetched_for_want_of_memory_are_told_again) {
  const auto ends = *CompletionFd::make();
  ends->expect();
  ends->expect();
  ends->post(1);
  std::vector<uint64_t> got;
  const int failed = each_allocation_fails(
      [&] {
        try {
          got = ends->drain();
        } catch (const std::bad_alloc&) {
          got.clear();
        }
      },
      [&] { CHECK(got.empty() && readable(ends->fd())); });
  CHECK(failed > 0 && got == std::vector<uint64_t>{1} && !readable(ends->fd()));
  ends->post(2);
  CHECK(readable(ends->fd()) && ends->drain() == std::vector<uint64_t>{2});
}
