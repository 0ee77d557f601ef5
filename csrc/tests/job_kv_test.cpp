// SPDX-License-Identifier: Apache-2.0
// KV operations are jobs; what is bound is checked, what came short is a fault, late answers are
// told, and log lines name their jobs.
#include <atomic>
#include <string>

#include "base/log.h"
#include "calrt/bounded_pool.h"
#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;
using scripted::Script;

namespace {

constexpr uint32_t kAll = CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY | CALD_KV_ROTATE |
                          CALD_KV_READ | CALD_KV_WRITE;
constexpr uint64_t kCell = 32;  // bytes, as the script says; 4 lanes of 64 cells

void can_all(Script& now) { now.kv_ops = kAll; }

Result<std::shared_ptr<Job>> move(Rig& rig, const KvMove& what, KvSpan span = {}) {
  return Job::submit_kv(rig.session, rig.model, what, std::move(span), in(20'000), &rig.sink);
}

bool says(const Error& error, const char* text) {
  return error.message.find(text) != std::string::npos;
}

// Records of the log while `body` runs.
struct Heard {
  std::string text;
  uint64_t job_seq = 0;
  std::vector<uint64_t> requests;
  std::atomic<int> lines{0};  // counted last: who sees the count sees the rest
} heard;
void hear(const LogRecord& record) {
  heard.text = record.text;
  heard.job_seq = record.job_seq;
  heard.requests.assign(record.requests.begin(), record.requests.end());
  ++heard.lines;
}

}  // namespace

TEST(a_kv_operation_is_a_job) {
  Rig rig(can_all);
  auto job = *move(rig, {CALD_KV_RANGE_COPY, 1, 2, 3, 4, 5, 0});
  CHECK(job->wait(0).ok() && job->bindings() == nullptr && rig.sink.told == 1);
  const cald_kv_desc& last = script().last_kv;
  CHECK(last.op == CALD_KV_RANGE_COPY && last.lane == 1 && last.to_lane == 2 && last.cell == 3);
  CHECK(last.to_cell == 4 && last.n == 5 && last.job_seq == job->job_seq());
  CHECK((*move(rig, {CALD_KV_ROTATE, 0, 0, 1, 0, 2, -7}))->wait(0).ok() && last.delta == -7);
  CHECK((*move(rig, {CALD_KV_CLEAR, 3, 0, 0, 0, 64, 0}))->wait(0).ok());
  CHECK((*move(rig, {CALD_KV_LANE_COPY, 3, 0, 0, 0, 64, 0}))->wait(0).ok());
}

TEST(cells_go_out_and_in_through_a_buffer_that_the_job_holds) {
  Rig rig(can_all);
  script().ends = Ends::HELD;
  auto buffer = *rig.device->alloc(10 * kCell, CALD_DOMAIN_HOST, 64);
  auto job = *move(rig, {CALD_KV_READ, 0, 0, 0, 0, 4, 0}, {buffer, 2 * kCell, 4 * kCell});
  CHECK(script().last_kv.buffer == buffer->handle() && script().last_kv.offset == 2 * kCell);
  CHECK(buffer->loan_state() == LoanState::IN_FLIGHT);
  CHECK(script().finish(job->job_seq()) && job->wait(0).ok());
  CHECK(buffer->loan_state() == LoanState::LEASED);
  script().set([](Script& now) {
    now.ends = Ends::INSIDE;
    now.bytes_in = 3 * kCell;
  });
  job = *move(rig, {CALD_KV_WRITE, 0, 0, 0, 0, 4, 0}, {buffer, 0, 4 * kCell});
  const Error error = job->wait(0).error();
  CHECK(error.code == Status::TRANSFER_FAULT && says(error, "96 of 128 bytes of its inputs"));
}

TEST(what_the_model_cannot_do_is_named) {
  Rig rig([](Script& now) { now.kv_ops = CALD_KV_CLEAR | CALD_KV_LANE_COPY; });
  const Error error = move(rig, {CALD_KV_ROTATE, 0, 0, 0, 0, 1, 1}).error();
  CHECK(error.code == Status::UNSUPPORTED);
  CHECK(says(error, "cannot rotate; it can: clear, lane_copy"));
  script().set([](Script& now) { now.kv_ops = 0; });
  CHECK(says(move(rig, {CALD_KV_READ, 0, 0, 0, 0, 1, 0}).error(), "cannot read; it can: none"));
  for (const uint32_t op : {0u, 3u, 64u})
    CHECK(move(rig, {op, 0, 0, 0, 0, 1, 0}).error().code == Status::INVALID_ARGUMENT);
  CHECK(script().called("kv_submit") == 0);
}

TEST(a_driver_without_what_is_optional) {
  Rig rig;
  auto device = *Device::open("scripted_bare", {});
  auto model = *Model::load(device, PackageForTest::make("scripted", "test-class"), {});
  auto session = *device->session();
  const KvMove clear{CALD_KV_CLEAR, 0, 0, 0, 0, 1, 0};
  const Error error = Job::submit_kv(session, model, clear, {}, in(1000)).error();
  CHECK(error.code == Status::UNSUPPORTED && says(error, "cannot clear, nor anything else"));
  std::shared_ptr<BindingSet> set = *model->make_bindings(0);
  auto job = *Job::submit(session, model, set, in(1000));
  CHECK(job->wait(0).ok() && job->timing().error().code == Status::UNSUPPORTED);
}

TEST(ranges_are_checked_before_the_driver_sees_them) {
  Rig rig(can_all);
  const struct {
    KvMove what;
    Status code;
    const char* text;
  } cases[] = {
      {{CALD_KV_CLEAR, 4, 0, 0, 0, 1, 0}, Status::OUT_OF_RANGE, "lane=4"},
      {{CALD_KV_CLEAR, 0, 0, 0, 0, 0, 0}, Status::OUT_OF_RANGE, "n=0"},
      {{CALD_KV_CLEAR, 0, 0, 60, 0, 5, 0}, Status::OUT_OF_RANGE, "cell=60 and n=5"},
      {{CALD_KV_CLEAR, 0, 0, UINT32_MAX, 0, UINT32_MAX, 0}, Status::OUT_OF_RANGE, "64 cells"},
      {{CALD_KV_LANE_COPY, 0, 9, 0, 0, 1, 0}, Status::OUT_OF_RANGE, "to_lane=9"},
      {{CALD_KV_LANE_COPY, 2, 2, 0, 0, 1, 0}, Status::INVALID_ARGUMENT, "to itself"},
      {{CALD_KV_LANE_COPY, 0, 2, 1, 0, 1, 0}, Status::INVALID_ARGUMENT, "range_copy"},
      {{CALD_KV_RANGE_COPY, 0, 1, 0, 64, 1, 0}, Status::OUT_OF_RANGE, "to_cell=64"},
      {{CALD_KV_READ, 0, 0, 0, 0, 1, 0}, Status::INVALID_ARGUMENT, "read needs a buffer"}};
  for (const auto& one : cases) {
    const Error error = move(rig, one.what).error();
    CHECK(error.code == one.code && says(error, one.text));
  }
  auto buffer = *rig.device->alloc(2 * kCell, CALD_DOMAIN_HOST, 64);
  const KvMove read{CALD_KV_READ, 0, 0, 0, 0, 2, 0};
  CHECK(move(rig, read, {buffer, 0, kCell}).error().code == Status::SHAPE_MISMATCH);
  CHECK(move(rig, read, {buffer, 1, 2 * kCell}).error().code == Status::OUT_OF_RANGE);
  CHECK(move(rig, read, {buffer, UINT64_MAX, 2 * kCell}).error().code == Status::OUT_OF_RANGE);
  CHECK(move(rig, {CALD_KV_CLEAR, 0, 0, 0, 0, 1, 0}, {buffer, 0, 0}).error().code ==
        Status::INVALID_ARGUMENT);
  auto device = *Device::open("scripted", {});
  auto foreign = *device->alloc(2 * kCell, CALD_DOMAIN_HOST, 64);
  CHECK(move(rig, read, {foreign, 0, 2 * kCell}).error().code == Status::INVALID_HANDLE);
  CHECK(script().called("kv_submit") == 0);
  CHECK(move(rig, read, {buffer, 0, 2 * kCell}).ok());
}

TEST(a_transfer_that_came_short_is_a_fault) {
  Rig rig;  // decode_b4: 3 x 16 bytes in, 160 out
  const auto end = [&](uint64_t in_bytes, uint64_t out_bytes) {
    script().bytes_in = in_bytes;
    script().bytes_out = out_bytes;
    return *rig.submit();
  };
  CHECK(end(48, 160)->wait(0).ok() && end(CALD_BYTES_UNKNOWN, CALD_BYTES_UNKNOWN)->wait(0).ok());
  CHECK(end(64, 200)->wait(0).ok());  // more, with padding, is no loss
  auto job = end(47, 159);
  const Error both = job->wait(0).error();
  CHECK(both.code == Status::TRANSFER_FAULT && job->state() == JobState::FAILED);
  CHECK(rig.sink.status == 26);
  CHECK(says(both, "47 of 48 bytes of its inputs") &&
        says(both, "159 of 160 bytes of its outputs"));
  CHECK(!says(end(48, 0)->wait(0).error(), "inputs"));
  CHECK(says(end(CALD_BYTES_UNKNOWN, 1)->wait(0).error(), "1 of 160"));
  script().told_size = offsetof(cald_completion, bytes_in);  // a driver of ABI 0.1
  CHECK(end(0, 0)->wait(0).ok());
}

TEST(a_completions_own_numbers_reach_the_error) {
  Rig rig;
  script().end_state = CALD_JOB_FAILED;
  script().end_status = CALD_EXECUTION_FAILED;
  script().told_native = 13;
  Error error = (*rig.submit())->wait(0).error();
  CHECK(error.code == Status::EXECUTION_FAILED && error.native_code == 13 && !error.unmapped);
  script().told_flags = CALD_ERROR_UNMAPPED;
  error = (*rig.submit())->wait(0).error();
  CHECK(error.code == Status::INTERNAL && error.native_code == 13 && error.unmapped);
  CHECK(error.status_class == std::string("submit"));
  CHECK(error_text(error).find("(calrt 29, native 13 unmapped)") != std::string::npos);
  script().told_size = offsetof(cald_completion, native_code);
  error = (*rig.submit())->wait(0).error();
  CHECK(error.code == Status::EXECUTION_FAILED && error.native_code == 0);
  can_all(script());
  script().told_size = sizeof(cald_completion);
  error = (*move(rig, {CALD_KV_CLEAR, 0, 0, 0, 0, 1, 0}))->wait(0).error();
  CHECK(error.unmapped && error.status_class == std::string("kv"));
}

TEST(a_late_answer_is_told_to_who_awaits_it) {
  Rig rig;
  script().ends = Ends::HELD;
  rig.sink.awaits = true;
  auto job = *rig.submit(5);
  CHECK(!job->wait(in(20'000)).ok() && rig.sink.state == JobState::LOST);
  CHECK(rig.sink.told == 1 && rig.sink.answers == 0);
  CHECK(rig.bindings->loan_state() == LoanState::QUARANTINED);
  CHECK(script().finish(job->job_seq()));
  CHECK(rig.sink.told == 1 && rig.sink.answers == 1 && !rig.bindings->busy());
}

TEST(log_lines_name_the_job_and_whom_it_serves) {
  Rig rig;
  script().ends = Ends::HELD;
  set_log_sink(hear);
  auto job = *rig.submit(20'000);
  log_job(LOG_INFO, "test", job->job_seq(), "hello");
  CHECK(heard.job_seq == job->job_seq() && heard.requests == std::vector<uint64_t>({71, 72}));
  driver_host().log_job(nullptr, LOG_INFO, job->job_seq(), "dma", "slow");
  CHECK(heard.text == "slow" && heard.requests.size() == 2 && heard.lines == 2);
  CHECK(script().finish(job->job_seq()));
  driver_host().log_job(nullptr, LOG_INFO, job->job_seq(), "dma", "late");
  CHECK(heard.job_seq == job->job_seq() && heard.requests.empty());
  auto lost = *rig.submit(5);
  CHECK(!lost->wait(in(20'000)).ok());
  CHECK(eventually([] { return heard.lines == 4; }));
  CHECK(heard.text.find("lost") == 0 && heard.job_seq == lost->job_seq());
  CHECK(heard.requests.size() == 2);
  set_log_sink(nullptr);
  CHECK(script().finish(lost->job_seq()));
}

TEST(a_pool_is_whole_again_after_the_late_answer_of_a_lost_job) {
  Rig rig;
  script().ends = Ends::HELD;
  BoundedPool<BindingSet>::Settings settings;
  settings.capacity = settings.keep = 3;
  auto pool = BoundedPool<BindingSet>::make(settings, [&] { return rig.model->make_bindings(0); });
  const auto is = [&](uint32_t free, uint32_t leased, uint32_t in_flight, uint32_t quarantined) {
    const PoolStats now = pool->stats();
    return now.free == free && now.leased == leased && now.in_flight == in_flight &&
           now.quarantined == quarantined;
  };
  auto kept = *pool->acquire(0), used = *pool->acquire(0);
  auto job = *rig.submit(used, 20);
  used.reset();
  CHECK(is(1, 1, 1, 0));
  CHECK(!job->wait(in(20'000)).ok() && job->state() == JobState::LOST);
  CHECK(is(1, 1, 0, 1));
  const uint64_t tag = job->job_seq(), late = late_completions(), strays = stray_completions();
  job.reset();
  CHECK(is(1, 1, 0, 1));  // nobody holds it but the driver
  CHECK(script().finish(tag) && late_completions() == late + 1 && rig.sink.told == 1);
  CHECK(eventually([&] { return is(2, 1, 0, 0); }));
  cald_completion again{};
  again.struct_size = sizeof again;
  again.state = CALD_JOB_DONE;
  again.job_seq = tag;
  script().last.on_complete(script().last.user, &again);  // known by its number, and dropped
  CHECK(stray_completions() == strays + 1);
  kept.reset();
  CHECK(is(3, 0, 0, 0));
  for (int i = 0; i < 3; ++i) CHECK(pool->acquire(0).ok());
  pool->close();
}

TEST(what_a_load_withholds_is_not_used_and_a_refusal_says_why) {
  Rig rig(can_all);
  LoadRequest request;
  request.lanes = 4;
  for (const char* name : {"k_rotate", "cancel"})
    request.withheld[name] = std::string(name) + " is C1 on it";
  auto model = *Model::load(rig.device, PackageForTest::make("scripted", "test-class"), request);
  const auto moved = [&](uint32_t op) {
    return Job::submit_kv(rig.session, model, {op, 0, 0, 1, 0, 2, 1}, {}, in(20'000), &rig.sink);
  };
  const uint64_t before = script().last_kv.job_seq;
  const auto refused = moved(CALD_KV_ROTATE);
  CHECK(!refused.ok() && refused.error().code == Status::UNSUPPORTED);
  CHECK(refused.error().message == "k_rotate is C1 on it");
  CHECK(script().last_kv.job_seq == before);
  CHECK((*moved(CALD_KV_CLEAR))->wait(0).ok());

  const std::shared_ptr<BindingSet> bindings = *model->make_bindings(0);
  script().ends = Ends::HELD;
  auto job = *Job::submit(rig.session, model, bindings, in(20'000), &rig.sink);
  const auto cancelled = job->cancel();
  CHECK(cancelled.error().code == Status::UNSUPPORTED);
  CHECK(cancelled.error().message == "cancel is C1 on it" && !job->terminal());
  CHECK(script().finish(job->job_seq()) && job->wait(0).ok() && job->cancel().ok());
  script().set([](Script& now) { now.ends = Ends::INSIDE; });
}
