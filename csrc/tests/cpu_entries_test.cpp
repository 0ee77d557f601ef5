// SPDX-License-Identifier: Apache-2.0
// What ABI 0.9 added to the cpu driver: counted bytes, states of output buffers, transfers, and
// callers of the older ABI.
#include <atomic>

#include "check.h"
#include "cpu_client.h"
#include "cpu_tiny_model.h"

using namespace calrt::testing;

namespace {

cald_buffer_state state_of(cald_buffer* buffer) {
  cald_buffer_state state{};
  state.struct_size = sizeof state;
  CHECK(cpu_table().buffer_state(buffer, &state, nullptr) == CALD_OK);
  return state;
}

struct Seen {
  std::atomic<int> times{0};
  uint64_t bytes_in = 0, bytes_out = 0;
  cald_buffer* output = nullptr;
  cald_buffer_state state{};
  static void tell(void* user, const cald_completion* completion) {
    auto* self = static_cast<Seen*>(user);
    self->bytes_in = completion->bytes_in;
    self->bytes_out = completion->bytes_out;
    self->state = state_of(self->output);  // reads an atomic: no entry that waits
    self->times += 1;
  }
};

struct World {
  TinyModel tiny{TinyShape{}};
  Device device;
  calrt::testing::Model model{device, tiny.package(), LoadArgs{}};
  int32_t token = 1, position = 0, lane = 0;
  std::vector<cald_binding> bindings = {
      model.bind(CALD_ROLE_TOKENS, &token, 4), model.bind(CALD_ROLE_POSITIONS, &position, 4),
      model.bind(CALD_ROLE_LANES, &lane, 4),
      model.bind(CALD_ROLE_LOGITS, nullptr, model.logit_bytes(1))};

  cald_job_desc desc(Seen& seen, uint64_t deadline_ns) {
    seen.output = bindings.back().buffer;
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = model.graph("decode_b1");
    desc.model = model.model;
    desc.n_bindings = static_cast<uint32_t>(bindings.size());
    desc.bindings = bindings.data();
    desc.job_seq = 5;
    desc.deadline_ns = deadline_ns;
    desc.on_complete = Seen::tell;
    desc.user = &seen;
    return desc;
  }

  void run(const cald_job_desc& desc) {
    cald_job* job = nullptr;
    CHECK(cpu_table().submit(device.session, &desc, &job, nullptr) == CALD_OK);
    CHECK(cpu_table().job_wait(job, CALD_NO_DEADLINE, nullptr) == CALD_OK);
    cpu_table().job_destroy(job);
  }
};

}  // namespace

TEST(bytes_and_output_state_of_a_job) {
  World world;
  Seen seen;
  CHECK(state_of(world.bindings.back().buffer).state == CALD_BUFFER_IDLE);
  world.run(world.desc(seen, CALD_NO_DEADLINE));
  CHECK(seen.times == 1 && seen.bytes_in == 12 && seen.bytes_out == world.model.logit_bytes(1));
  CHECK(seen.state.state == CALD_BUFFER_READY && seen.state.job_seq == 5);  // before it was told
  CHECK(state_of(world.bindings[0].buffer).state == CALD_BUFFER_IDLE);
  Seen late;
  world.run(world.desc(late, 1));
  CHECK(late.times == 1 && late.bytes_out == 0 && late.state.state == CALD_BUFFER_IDLE);
}

TEST(a_job_of_the_older_abi_runs) {
  World world;
  Seen seen;
  cald_job_desc desc = world.desc(seen, CALD_NO_DEADLINE);
  desc.struct_size = offsetof(cald_job_desc, set);
  world.run(desc);
  CHECK(seen.times == 1 && seen.state.state == CALD_BUFFER_READY);
}

TEST(an_older_caller_gets_what_has_room) {
  Device device;
  const char* const untouched = "untouched";
  cald_device_info info{};
  info.struct_size = offsetof(cald_device_info, id);
  info.id = untouched;
  CHECK(cpu_table().device_info(device.device, &info, nullptr) == CALD_OK);
  CHECK(std::strcmp(info.name, "cpu") == 0 && info.id == untouched);
  info.struct_size -= 1;
  cald_error err{};
  err.struct_size = offsetof(cald_error, flags);
  CHECK(cpu_table().device_info(device.device, &info, &err) == CALD_INVALID_ARGUMENT);
  CHECK(std::strstr(err.message, "struct_size") != nullptr);
}

TEST(transfers_say_how_much_moved) {
  Device device;
  cald_buffer* buffer = nullptr;
  CHECK(cpu_table().buffer_alloc(device.device, CALD_DOMAIN_HOST, 16, 64, &buffer, nullptr) ==
        CALD_OK);
  char text[] = "abcdefgh", back[9] = {};
  cald_transfer transfer{sizeof transfer, CALD_TO_DEVICE, buffer, 8, text, 8, 99};
  CHECK(cpu_table().buffer_transfer(&transfer, nullptr) == CALD_OK && transfer.moved == 8);
  transfer.direction = CALD_TO_HOST;
  transfer.host = back;
  CHECK(cpu_table().buffer_transfer(&transfer, nullptr) == CALD_OK && transfer.moved == 8);
  CHECK(std::strcmp(back, text) == 0);
  transfer.offset = 9;
  CHECK(cpu_table().buffer_transfer(&transfer, nullptr) == CALD_OUT_OF_RANGE);
  CHECK(transfer.moved == 0);
  transfer.offset = 0;
  transfer.direction = 0;
  CHECK(cpu_table().buffer_transfer(&transfer, nullptr) == CALD_INVALID_ARGUMENT);
  cpu_table().buffer_free(buffer);
}
