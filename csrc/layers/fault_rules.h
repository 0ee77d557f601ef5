// SPDX-License-Identifier: Apache-2.0
// The fault layer's rules: read from text (grammar: fault.h), counted, and met or not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

enum class Throw { NOTHING, EXCEPTION, OTHER };
enum class OnCancel { CANCELLED, NORMAL };

// What is to happen to one call or one completion. The default is nothing.
struct Effect {
  std::optional<cald_status> status;
  int64_t native = 0;
  bool unmapped = false;
  std::string message;
  uint64_t delay_ms = 0;
  // of an entry
  Throw throws = Throw::NOTHING;
  bool after = false;
  uint64_t short_by = 0;
  // of a completion
  std::optional<int32_t> state;
  bool drop = false, hold = false, swap = false, thread = false, early = false, twice = false;
  OnCancel on_cancel = OnCancel::CANCELLED;
  int64_t seq = 0;
  uint64_t short_in = 0, short_out = 0;
  bool nan = false, flip = false;
};

// What the device is instead, at all times.
struct Shape {
  std::optional<int32_t> completion;
  std::optional<uint32_t> clock, exclusive, sessions, depth, queue;
  std::optional<std::string> id;
  std::array<bool, kEntryCount> hidden{};  // entries that it lacks

  void apply(cald_device_info& info) const;
};

struct When {
  uint64_t nth = 0, from = 1, every = 1, times = UINT64_MAX;
  double chance = 1;
  uint64_t seed = 0;
  bool met(uint64_t count) const;  // apart from `times`
};

// Thread-safe.
class FaultRules {
 public:
  // A target is an entry's number or one of these.
  static constexpr int kCompletion = kEntryCount, kAny = kEntryCount + 1;
  static constexpr int kTargets = kEntryCount + 2;

  static Result<std::unique_ptr<FaultRules>> parse(const std::string& text);

  // Counts one call of an entry (or one completion) and says what the rules want.
  Effect meet(int target);
  bool about(int target) const { return about_[static_cast<size_t>(target)]; }
  const Shape& shape() const { return shape_; }
  std::vector<std::pair<std::string, uint64_t>> counters();

 private:
  struct Value {
    std::string text;
    int64_t number = 0;
    double real = 0;
    uint64_t count() const { return static_cast<uint64_t>(number); }
    uint32_t small() const { return static_cast<uint32_t>(number); }
  };
  struct Setting {
    void (*set)(Effect&, const Value&);
    Value value;
  };
  struct Rule {
    int target = 0;
    std::string target_name;
    When when;
    std::vector<Setting> settings;
    uint64_t seen = 0, hits = 0;
    bool has_when = false, has_shape = false;
  };
  struct Word;
  static const Word* find(const std::string& name);
  static Result<Value> read_value(const Word& word, const std::string& text);
  Result<Rule> read_rule(const std::string& text);
  Result<void> read_word(Rule& rule, const std::string& text);

  std::mutex mutex_;
  std::vector<Rule> rules_;
  std::array<bool, kTargets> about_{};
  Shape shape_;
};

// Answers a call with the effect's status, and its native number and text in the caller's error.
void answer(Call& call, const Effect& effect);

}  // namespace calrt::layers
