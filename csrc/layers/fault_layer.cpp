// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>

#include "layers/fault.h"
#include "layers/fault_jobs.h"
#include "layers/fault_rules.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;

constexpr uint64_t kRefusedPatienceNs =
    10'000'000'000;  // for a job whose submit is refused afterwards

void raise(Throw what) {
  if (what == Throw::EXCEPTION) throw std::runtime_error("thrown by a fault rule");
  if (what == Throw::OTHER) throw 42;
}

// Moves all but the last `short_by` bytes. `bytes` is a call's argument.
void move_short(Call& call, uint64_t& bytes, uint64_t short_by) {
  const uint64_t asked = bytes;
  bytes -= std::min(bytes, short_by);
  call.forward();
  bytes = asked;
}

class FaultLayer final : public Layer {
 public:
  explicit FaultLayer(std::shared_ptr<FaultRules> rules)
      : rules_(std::move(rules)), jobs_(std::make_shared<FaultJobs>(rules_)) {}

  const char* name() const override { return "fault"; }
  bool hides(Entry entry) const override {
    return rules_->shape().hidden[static_cast<size_t>(entry)];
  }
  std::vector<std::pair<std::string, uint64_t>> counters() override { return rules_->counters(); }

  bool replace(Call& call) override {
    const Effect effect = rules_->meet(static_cast<int>(call.entry));
    if (effect.delay_ms > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(effect.delay_ms));
    const bool after = effect.after || !call.has_status;
    if (!after) {
      raise(effect.throws);
      if (effect.status) {
        answer(call, effect);
        return true;
      }
    }
    work(call, effect);
    if (after && (effect.throws != Throw::NOTHING || effect.status)) {
      if (call.has_status && call.status == CALD_OK && !undo(call)) return true;
      raise(effect.throws);
      answer(call, effect);
    }
    return true;
  }

 private:
  void work(Call& call, const Effect& effect);
  bool undo(Call& call);

  std::shared_ptr<FaultRules> rules_;
  std::shared_ptr<FaultJobs> jobs_;
};

// The entry's own work, as the rules leave it.
void FaultLayer::work(Call& call, const Effect& effect) {
  switch (call.entry) {
    case Entry::device_info:
      call.forward();
      if (call.status == CALD_OK)
        rules_->shape().apply(*std::get<1>(call.of<&Table::device_info>()));
      return;
    case Entry::device_enumerate:
      call.forward();
      if (call.status == CALD_OK)
        rules_->shape().apply(*std::get<2>(call.of<&Table::device_enumerate>()));
      return;
    case Entry::device_open:
      if (rules_->shape().completion == CALD_COMPLETION_POLL && !call.lower<&Table::poll>()) {
        Effect lacking;
        lacking.status = CALD_UNSUPPORTED;
        lacking.message = "fault: completion=poll needs a driver with the entry poll";
        return answer(call, lacking);
      }
      return call.forward();
    case Entry::buffer_h2d:
      return move_short(call, std::get<3>(call.of<&Table::buffer_h2d>()), effect.short_by);
    case Entry::buffer_d2h:
      return move_short(call, std::get<3>(call.of<&Table::buffer_d2h>()), effect.short_by);
    case Entry::buffer_transfer: {
      cald_transfer& transfer = *std::get<0>(call.of<&Table::buffer_transfer>());
      return move_short(call, transfer.bytes, effect.short_by);
    }
    default:
      break;
  }
  if (!jobs_->wanted()) return call.forward();
  switch (call.entry) {
    case Entry::submit:
      return jobs_->submit(call);
    case Entry::kv_submit:
      return jobs_->kv_submit(call);
    case Entry::job_query:
      return jobs_->job_query(call);
    case Entry::job_wait:
      return jobs_->job_wait(call);
    case Entry::job_cancel:
      return jobs_->job_cancel(call);
    case Entry::job_destroy:
      return jobs_->job_destroy(call);
    case Entry::poll:
      return jobs_->poll(call);
    case Entry::session_close:
      return jobs_->session_close(call);
    case Entry::driver_close:
      return jobs_->driver_close(call);
    default:
      return call.forward();
  }
}

// Gives back what a call made that the caller will never hear of. False: it cannot be given back,
// the call's own answer must stand.
bool FaultLayer::undo(Call& call) {
  const Table& driver = call.driver;
  const auto give_back = [](auto& out, auto destroy) {
    destroy(*out);
    *out = nullptr;
    return true;
  };
  const auto finish = [&](auto& out) {  // a job uses the caller's buffers until it has ended
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    if (driver.job_wait(*out, static_cast<uint64_t>(now_ns) + kRefusedPatienceNs, nullptr) !=
        CALD_OK)
      return false;
    jobs_->forget(*out);
    return give_back(out, driver.job_destroy);
  };
  switch (call.entry) {
    case Entry::driver_open:
      return give_back(std::get<1>(call.of<&Table::driver_open>()), driver.driver_close);
    case Entry::device_open:
      return give_back(std::get<2>(call.of<&Table::device_open>()), driver.device_close);
    case Entry::session_open:
      return give_back(std::get<2>(call.of<&Table::session_open>()), driver.session_close);
    case Entry::buffer_alloc:
      return give_back(std::get<4>(call.of<&Table::buffer_alloc>()), driver.buffer_free);
    case Entry::model_load:
      return give_back(std::get<3>(call.of<&Table::model_load>()), driver.model_unload);
    case Entry::binding_set_make:
      return give_back(std::get<4>(call.of<&Table::binding_set_make>()), driver.binding_set_free);
    case Entry::submit:
      return finish(std::get<2>(call.of<&Table::submit>()));
    case Entry::kv_submit:
      return finish(std::get<2>(call.of<&Table::kv_submit>()));
    default:
      return true;
  }
}

}  // namespace

Result<std::shared_ptr<Layer>> make_fault_layer(const std::string& rules) {
  CALRT_TRY_ASSIGN(std::unique_ptr<FaultRules> parsed, FaultRules::parse(rules));
  return std::shared_ptr<Layer>(std::make_shared<FaultLayer>(std::move(parsed)));
}

}  // namespace calrt::layers
