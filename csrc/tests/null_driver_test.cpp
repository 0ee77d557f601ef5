// SPDX-License-Identifier: Apache-2.0
// null is what porters copy: what it shows of the ABI must be right, entry by entry.
#include <cstring>

#include "calrt/driver_host.h"
#include "calrt/model.h"
#include "tests/check.h"
#include "tests/package_for_test.h"

using namespace calrt;

namespace {

struct World {
  std::shared_ptr<Device> device = *Device::open("null", {});
  std::shared_ptr<Model> model =
      *Model::load(device, PackageForTest::make("null", "null"), LoadRequest{});
  std::shared_ptr<Session> session = *device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(*model->graph_index("decode_b1"));
  const cald_driver_table& table = device->table();

  struct Ended {
    int times = 0;
    cald_completion last{};
    static void tell(void* user, const cald_completion* completion) {
      auto* self = static_cast<Ended*>(user);
      self->last = *completion;
      ++self->times;
    }
  };

  cald_job_desc desc(Ended& ended, uint64_t deadline_ns = CALD_NO_DEADLINE) {
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = set->graph();
    desc.model = model->handle();
    desc.n_bindings = static_cast<uint32_t>(set->bindings().size());
    desc.bindings = set->bindings().data();
    desc.job_seq = 77;
    desc.deadline_ns = deadline_ns;
    desc.on_complete = Ended::tell;
    desc.user = &ended;
    return desc;
  }

  // The status of the submit; a job that was made is destroyed.
  cald_status submit(const cald_job_desc& desc) {
    cald_job* job = nullptr;
    const cald_status status = table.submit(session->handle(), &desc, &job, nullptr);
    CHECK((status == CALD_OK) == (job != nullptr));
    table.job_destroy(job);
    return status;
  }

  cald_status kv(Ended& ended, uint32_t op, uint32_t cell, uint32_t n, uint32_t to_lane = 0,
                 uint32_t to_cell = 0, uint32_t lane = 0) {
    cald_kv_desc desc{};
    desc.struct_size = sizeof desc;
    desc.op = op;
    desc.model = model->handle();
    desc.lane = lane;
    desc.to_lane = to_lane;
    desc.cell = cell;
    desc.to_cell = to_cell;
    desc.n = n;
    desc.job_seq = 78;
    desc.deadline_ns = CALD_NO_DEADLINE;
    desc.on_complete = Ended::tell;
    desc.user = &ended;
    cald_job* job = nullptr;
    const cald_status status = table.kv_submit(session->handle(), &desc, &job, nullptr);
    table.job_destroy(job);
    return status;
  }

  cald_buffer_state state(int32_t role) {
    cald_buffer_state state{};
    state.struct_size = sizeof state;
    CHECK(table.buffer_state(set->buffer(role)->handle(), &state, nullptr) == CALD_OK);
    return state;
  }
};

}  // namespace

TEST(a_completion_counts_what_was_bound) {
  World world;
  World::Ended ended;
  CHECK(world.state(CALD_ROLE_LOGITS).state == CALD_BUFFER_IDLE);
  CHECK(world.submit(world.desc(ended)) == CALD_OK);
  CHECK(ended.times == 1 && ended.last.job_seq == 77 && ended.last.state == CALD_JOB_DONE);
  CHECK(ended.last.bytes_in == 3 * sizeof(int32_t));
  CHECK(ended.last.bytes_out == PackageForTest::kVocab * sizeof(float));
  CHECK(ended.last.native_code == 0 && ended.last.flags == 0);
  const cald_buffer_state output = world.state(CALD_ROLE_LOGITS);
  CHECK(output.state == CALD_BUFFER_READY && output.job_seq == 77);
  CHECK(world.state(CALD_ROLE_TOKENS).state == CALD_BUFFER_IDLE);  // no output
}

TEST(a_job_that_is_late_does_not_begin) {
  World world;
  World::Ended ended;
  const cald_job_desc desc = world.desc(ended, monotonic_ns() - 1);
  cald_job* job = nullptr;
  CHECK(world.table.submit(world.session->handle(), &desc, &job, nullptr) == CALD_OK);
  CHECK(ended.times == 1 && ended.last.state == CALD_JOB_FAILED);
  CHECK(ended.last.status == CALD_EXECUTION_FAILED && ended.last.bytes_out == 0);
  int32_t state = 0;
  cald_error why{};
  why.struct_size = sizeof why;
  CHECK(world.table.job_query(job, &state, &why) == CALD_OK && state == CALD_JOB_FAILED);
  CHECK(std::strstr(why.message, "deadline") != nullptr);
  CHECK(world.state(CALD_ROLE_LOGITS).state == CALD_BUFFER_IDLE);
  world.table.job_destroy(job);
}

TEST(a_binding_set_belongs_to_its_graph) {
  World world;
  World::Ended ended;
  cald_job_desc desc = world.desc(ended);
  desc.set = world.set->handle();
  CHECK(desc.set != nullptr && world.submit(desc) == CALD_OK);
  desc.graph = *world.model->graph_index("decode_b4");
  CHECK(world.submit(desc) == CALD_INVALID_HANDLE);
  desc.struct_size = offsetof(cald_job_desc, set);  // calrt of ABI 0.1: the field is not there
  CHECK(world.submit(desc) == CALD_OK);
}

TEST(transfers_say_how_much_moved) {
  World world;
  auto buffer = *world.device->alloc(16, CALD_DOMAIN_HOST, 64);
  char text[] = "abcdefgh", back[9] = {};
  cald_transfer transfer{sizeof transfer, CALD_TO_DEVICE, buffer->handle(), 8, text, 8, 99};
  CHECK(world.table.buffer_transfer(&transfer, nullptr) == CALD_OK && transfer.moved == 8);
  transfer.direction = CALD_TO_HOST;
  transfer.host = back;
  CHECK(world.table.buffer_transfer(&transfer, nullptr) == CALD_OK && transfer.moved == 8);
  CHECK(std::strcmp(back, text) == 0);
  transfer.offset = 9;
  CHECK(world.table.buffer_transfer(&transfer, nullptr) == CALD_OUT_OF_RANGE);
  CHECK(transfer.moved == 0);
  transfer.offset = UINT64_MAX;
  CHECK(world.table.buffer_transfer(&transfer, nullptr) == CALD_OUT_OF_RANGE);
  transfer.offset = 0;
  transfer.direction = 3;
  CHECK(world.table.buffer_transfer(&transfer, nullptr) == CALD_INVALID_ARGUMENT);
}

TEST(kv_operations_are_jobs_and_only_true_ones) {
  World world;
  World::Ended ended;
  CHECK(world.kv(ended, CALD_KV_CLEAR, 10, 54) == CALD_OK);
  CHECK(ended.times == 1 && ended.last.job_seq == 78 && ended.last.state == CALD_JOB_DONE);
  CHECK(world.kv(ended, CALD_KV_LANE_COPY, 99, 64) == CALD_OK);  // `cell` is not read
  CHECK(world.kv(ended, CALD_KV_RANGE_COPY, 0, 32, 0, 32) == CALD_OK);
  CHECK(ended.times == 3);
  CHECK(world.kv(ended, CALD_KV_CLEAR, 11, 54) == CALD_OUT_OF_RANGE);
  CHECK(world.kv(ended, CALD_KV_CLEAR, UINT32_MAX, UINT32_MAX) == CALD_OUT_OF_RANGE);
  CHECK(world.kv(ended, CALD_KV_RANGE_COPY, 0, 32, 0, 33) == CALD_OUT_OF_RANGE);
  CHECK(world.kv(ended, CALD_KV_LANE_COPY, 0, 1, 1) == CALD_OUT_OF_RANGE);
  CHECK(world.kv(ended, CALD_KV_CLEAR, 0, 1, 0, 0, 1) == CALD_OUT_OF_RANGE);
  CHECK(world.kv(ended, CALD_KV_CLEAR, 0, 1, 9) == CALD_OK);  // `to_lane` is not read
  for (const uint32_t op : {0u, 64u, uint32_t(CALD_KV_READ), uint32_t(CALD_KV_WRITE),
                            uint32_t(CALD_KV_ROTATE), uint32_t(CALD_KV_CLEAR | CALD_KV_LANE_COPY)})
    CHECK(world.kv(ended, op, 0, 1) == CALD_UNSUPPORTED);
  CHECK(ended.times == 4);
}

TEST(an_older_caller_gets_what_has_room) {
  World world;
  cald_device_info info{};
  info.struct_size = offsetof(cald_device_info, id);
  const char* const untouched = "untouched";
  info.id = untouched;
  CHECK(world.table.device_info(world.device->handle(), &info, nullptr) == CALD_OK);
  CHECK(std::strcmp(info.name, "null") == 0 && info.id == untouched);
  CHECK(info.struct_size == offsetof(cald_device_info, id));
}
