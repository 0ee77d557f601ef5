// SPDX-License-Identifier: Apache-2.0
// unique_handle: destroyed once, whatever is moved where; and its form for a driver's handles.
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/unique_handle.h"
#include "calrt/driver_handle.h"
#include "tests/check.h"

using namespace calrt;

namespace {

std::vector<int*> destroyed;

struct Traits {
  using Handle = int*;
  static void destroy(int* handle) noexcept { destroyed.push_back(handle); }
};
using Owner = unique_handle<Traits>;

int a, b;

}  // namespace

TEST(destroyed_once_at_the_end_of_life) {
  destroyed.clear();
  {
    const Owner owner(&a);
  }
  CHECK(destroyed == std::vector<int*>{&a});
  {
    const Owner empty;
  }
  CHECK(destroyed.size() == 1);
}

TEST(moving_over_a_live_handle_destroys_it_first) {
  destroyed.clear();
  Owner first(&a), second(&b);
  first = std::move(second);
  CHECK(destroyed == std::vector<int*>{&a});
  CHECK(first.get() == &b && !second);
  first.reset();
  CHECK(destroyed == (std::vector<int*>{&a, &b}));
}

TEST(self_move_changes_nothing) {
  destroyed.clear();
  Owner owner(&a);
  Owner& same = owner;
  owner = std::move(same);
  CHECK(owner.get() == &a && destroyed.empty());
}

// What is destroyed may reach its owner again, as a parent that drops its children does.
TEST(an_owner_is_empty_before_its_handle_is_destroyed) {
  struct Reentrant {
    using Handle = int*;
    static void destroy(int* handle) noexcept {
      destroyed.push_back(handle);
      if (destroyed.size() < 3) owner().reset();
      CHECK(!owner() || owner().get() == &b);
    }
    static unique_handle<Reentrant>& owner() {
      static unique_handle<Reentrant> one;
      return one;
    }
  };
  destroyed.clear();
  Reentrant::owner() = unique_handle<Reentrant>(&a);
  Reentrant::owner().reset();
  CHECK(destroyed == std::vector<int*>{&a});
}

TEST(release_gives_up_without_destroying) {
  destroyed.clear();
  {
    Owner owner(&a);
    CHECK(owner.release() == &a && !owner);
  }
  CHECK(destroyed.empty());
}

TEST(reset_to_another_destroys_the_old) {
  destroyed.clear();
  Owner owner(&a);
  owner.reset(&b);
  CHECK(destroyed == std::vector<int*>{&a} && owner.get() == &b);
}

TEST(moved_into_a_container) {
  destroyed.clear();
  {
    std::vector<Owner> owners;
    for (int i = 0; i < 9; ++i) owners.emplace_back(i % 2 == 0 ? &a : &b);
    CHECK(destroyed.empty());
  }
  CHECK(destroyed.size() == 9);
}

static int freed = 0;

TEST(driver_handles_use_their_own_table) {
  cald_driver_table table{};
  table.name = "test";
  table.buffer_free = [](cald_buffer*) { ++freed; };
  auto* fake = reinterpret_cast<cald_buffer*>(&a);
  {
    BufferHandle one({fake, &table});
    BufferHandle two = std::move(one);
    CHECK(!one && two && two.get().pointer == fake);
  }
  CHECK(freed == 1);
}

TEST(a_destroy_that_throws_does_not_end_the_process) {
  cald_driver_table table{};
  table.name = "test";
  table.model_unload = [](cald_model*) { throw std::runtime_error("no"); };
  set_log_sink([](const LogRecord&) { ++freed; });
  freed = 0;
  {
    const ModelHandle handle({reinterpret_cast<cald_model*>(&a), &table});
  }
  set_log_sink(nullptr);
  CHECK(freed == 1);  // it was said in the log
}
