// SPDX-License-Identifier: Apache-2.0
#include "layers/fault_rules.h"

#include <charconv>
#include <climits>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <variant>

#include "layers/answer.h"
#include "layers/words.h"

namespace calrt::layers {
namespace {

// Kinds of targets a word has a meaning for, as bits.
enum : unsigned {
  OF_STATUS = 1,    // entries that return a status
  OF_VOID = 2,      // entries that do not
  OF_TRANSFER = 4,  // entries that move bytes
  OF_OPTIONAL = 8,  // entries that a driver may lack
  OF_INFO = 16,
  OF_COMPLETION = 32,
  OF_ENTRY = OF_STATUS | OF_VOID,
  OF_ALL = OF_ENTRY | OF_COMPLETION
};

template <class F>
struct Returns;
template <class R, class... A>
struct Returns<R (*)(A...)> {
  static constexpr bool status = std::is_same_v<R, cald_status>;
};

unsigned kinds_of(int target) {
  static constexpr unsigned kKinds[] = {
#define CALD_ENTRY(name, need, minor, cls)                                     \
  (Returns<decltype(cald_driver_table::name)>::status ? OF_STATUS : OF_VOID) | \
      (#need[0] == 'O' ? OF_OPTIONAL : 0u),
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  };
  if (target == FaultRules::kCompletion) return OF_COMPLETION;
  if (target == FaultRules::kAny) return OF_STATUS;
  unsigned kinds = kKinds[target];
  switch (static_cast<Entry>(target)) {
    case Entry::buffer_transfer:
    case Entry::buffer_h2d:
    case Entry::buffer_d2h:
      return kinds | OF_TRANSFER;
    case Entry::device_info:
      return kinds | OF_INFO;
    default:
      return kinds;
  }
}

int target_of(const std::string& name) {
  if (name == "completion") return FaultRules::kCompletion;
  if (name == "any") return FaultRules::kAny;
  for (int i = 0; i < kEntryCount; ++i)
    if (name == entry_name(static_cast<Entry>(i))) return i;
  return -1;
}

uint64_t mixed(uint64_t x) {  // splitmix64's finaliser: a good hash of a counter
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr int64_t kMostDelayMs = 60'000;
constexpr size_t kMostRules = 64, kMostText = 8192;

enum class Takes { NOTHING, NUMBER, REAL, STATUS, TEXT, CHOICE };

}  // namespace

struct FaultRules::Word {
  using SetEffect = void (*)(Effect&, const Value&);
  using SetWhen = void (*)(When&, const Value&);
  using SetShape = void (*)(Shape&, int target, const Value&);
  const char* name;
  unsigned targets;
  Takes takes;
  int64_t least, most;  // of a number; the first choice counts as `least`
  std::variant<SetEffect, SetWhen, SetShape> set;
  std::vector<std::string> choices = {};
};

const FaultRules::Word* FaultRules::find(const std::string& name) {
  using enum Takes;
  using V = Value;
  constexpr int64_t kMost = INT64_MAX, kMost32 = UINT32_MAX;
  constexpr unsigned kAnswer = OF_STATUS | OF_COMPLETION;
  static const auto* words = new std::vector<Word>{
      {"nth", OF_ALL, NUMBER, 1, kMost, [](When& w, const V& v) { w.nth = v.count(); }},
      {"from", OF_ALL, NUMBER, 1, kMost, [](When& w, const V& v) { w.from = v.count(); }},
      {"every", OF_ALL, NUMBER, 1, kMost, [](When& w, const V& v) { w.every = v.count(); }},
      {"times", OF_ALL, NUMBER, 1, kMost, [](When& w, const V& v) { w.times = v.count(); }},
      {"p", OF_ALL, REAL, 0, 1, [](When& w, const V& v) { w.chance = v.real; }},
      {"seed", OF_ALL, NUMBER, 0, kMost, [](When& w, const V& v) { w.seed = v.count(); }},

      {"status", kAnswer, STATUS, INT_MIN, INT_MAX,
       [](Effect& e, const V& v) { e.status = static_cast<cald_status>(v.number); }},
      {"native", kAnswer, NUMBER, INT64_MIN, kMost,
       [](Effect& e, const V& v) { e.native = v.number; }},
      {"unmapped", kAnswer, NOTHING, 0, 0, [](Effect& e, const V&) { e.unmapped = true; }},
      {"message", kAnswer, TEXT, 0, 0, [](Effect& e, const V& v) { e.message = v.text; }},
      {"delay_ms", OF_ALL, NUMBER, 0, kMostDelayMs,
       [](Effect& e, const V& v) { e.delay_ms = v.count(); }},

      {"throw",
       OF_ENTRY,
       CHOICE,
       0,
       0,
       [](Effect& e, const V& v) { e.throws = v.number == 0 ? Throw::EXCEPTION : Throw::OTHER; },
       {"exception", "other"}},
      {"after", OF_STATUS, NOTHING, 0, 0, [](Effect& e, const V&) { e.after = true; }},
      {"short", OF_TRANSFER, NUMBER, 1, kMost,
       [](Effect& e, const V& v) { e.short_by = v.count(); }},
      {"hide", OF_OPTIONAL, NOTHING, 0, 0,
       [](Shape& s, int target, const V&) { s.hidden[static_cast<size_t>(target)] = true; }},

      {"state",
       OF_COMPLETION,
       CHOICE,
       CALD_JOB_DONE,
       0,
       [](Effect& e, const V& v) { e.state = static_cast<int32_t>(v.number); },
       {"done", "failed", "cancelled"}},
      {"drop", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.drop = true; }},
      {"hold", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.hold = true; }},
      {"swap", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.swap = true; }},
      {"thread", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.thread = true; }},
      {"early", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.early = true; }},
      {"twice", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.twice = true; }},
      {"cancel",
       OF_COMPLETION,
       CHOICE,
       0,
       0,
       [](Effect& e, const V& v) {
         e.on_cancel = v.number == 0 ? OnCancel::CANCELLED : OnCancel::NORMAL;
       },
       {"cancelled", "normal"}},
      {"seq", OF_COMPLETION, NUMBER, INT_MIN, INT_MAX,
       [](Effect& e, const V& v) { e.seq = v.number; }},
      {"short_in", OF_COMPLETION, NUMBER, 1, kMost,
       [](Effect& e, const V& v) { e.short_in = v.count(); }},
      {"short_out", OF_COMPLETION, NUMBER, 1, kMost,
       [](Effect& e, const V& v) { e.short_out = v.count(); }},
      {"nan", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.nan = true; }},
      {"flip", OF_COMPLETION, NOTHING, 0, 0, [](Effect& e, const V&) { e.flip = true; }},

      {"completion",
       OF_INFO,
       CHOICE,
       CALD_COMPLETION_CALLBACK,
       0,
       [](Shape& s, int, const V& v) { s.completion = static_cast<int32_t>(v.number); },
       {"callback", "wait", "poll"}},
      {"clock",
       OF_INFO,
       CHOICE,
       CALD_CLOCK_REAL,
       0,
       [](Shape& s, int, const V& v) { s.clock = v.small(); },
       {"real", "virtual"}},
      {"exclusive", OF_INFO, NUMBER, 0, 1,
       [](Shape& s, int, const V& v) { s.exclusive = v.small(); }},
      {"sessions", OF_INFO, NUMBER, 1, kMost32,
       [](Shape& s, int, const V& v) { s.sessions = v.small(); }},
      {"depth", OF_INFO, NUMBER, 1, kMost32,
       [](Shape& s, int, const V& v) { s.depth = v.small(); }},
      {"queue", OF_INFO, NUMBER, 0, kMost32,
       [](Shape& s, int, const V& v) { s.queue = v.small(); }},
      {"id", OF_INFO, TEXT, 0, 0, [](Shape& s, int, const V& v) { s.id = v.text; }},
  };
  for (const Word& word : *words)
    if (name == word.name) return &word;
  return nullptr;
}

Result<FaultRules::Value> FaultRules::read_value(const Word& word, const std::string& text) {
  Value value{text};
  const char* end = text.data() + text.size();
  switch (word.takes) {
    case Takes::NOTHING:
      if (!text.empty()) return fail(Status::INVALID_ARGUMENT, "takes no value");
      return value;
    case Takes::TEXT:
      return value;
    case Takes::CHOICE:
      for (size_t i = 0; i < word.choices.size(); ++i)
        if (text == word.choices[i]) {
          value.number = word.least + static_cast<int64_t>(i);
          return value;
        }
      break;
    case Takes::STATUS:
      for (int32_t i = 0; i < kStatusCount; ++i)
        if (text == status_row_at(i).name) {
          value.number = i;
          return value;
        }
      [[fallthrough]];
    case Takes::NUMBER: {
      const auto read = std::from_chars(text.data(), end, value.number);
      if (read.ec != std::errc() || read.ptr != end) break;
      if (value.number < word.least || value.number > word.most)
        return fail(Status::INVALID_ARGUMENT, "%lld is outside %lld to %lld",
                    (long long)value.number, (long long)word.least, (long long)word.most);
      return value;
    }
    case Takes::REAL: {
      const auto read = std::from_chars(text.data(), end, value.real);
      if (read.ec != std::errc() || read.ptr != end) break;
      if (!(value.real >= 0 && value.real <= 1))
        return fail(Status::INVALID_ARGUMENT, "%.40s is outside 0 to 1", text.c_str());
      return value;
    }
  }
  std::string due = word.takes == Takes::STATUS ? "a number or a status's name" : "a number";
  if (word.takes == Takes::CHOICE) {
    due.clear();
    for (const std::string& choice : word.choices) due += (due.empty() ? "" : ", ") + choice;
  }
  return fail(Status::INVALID_ARGUMENT, "'%.40s' is not %s", text.c_str(), due.c_str());
}

Result<void> FaultRules::read_word(Rule& rule, const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::string given = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (given.size() >= 2 && given.front() == '"' && given.back() == '"')
    given = given.substr(1, given.size() - 2);
  const Word* word = find(name);
  if (word == nullptr)
    return fail(Status::INVALID_ARGUMENT, "there is no word '%.40s'", name.c_str());
  if ((word->targets & kinds_of(rule.target)) == 0)
    return fail(Status::INVALID_ARGUMENT, "'%s' has no meaning for %s", word->name,
                rule.target_name.c_str());
  if (word->takes == Takes::CHOICE && equals == std::string::npos && name == "throw")
    given = word->choices[0];
  auto value = read_value(*word, given);
  if (!value.ok())
    return fail(Status::INVALID_ARGUMENT, "%s: %s", word->name, value.error().message.c_str());
  if (const auto* when = std::get_if<Word::SetWhen>(&word->set)) {
    (*when)(rule.when, *value);
    rule.has_when = true;
  } else if (const auto* shape = std::get_if<Word::SetShape>(&word->set)) {
    (*shape)(shape_, rule.target, *value);
    rule.has_shape = true;
  } else {
    rule.settings.push_back({std::get<Word::SetEffect>(word->set), *std::move(value)});
  }
  return {};
}

Result<FaultRules::Rule> FaultRules::read_rule(const std::string& text) {
  std::vector<std::string> words = split_outside_quotes(text, ' ');
  Rule rule;
  rule.target_name = words.front();
  rule.target = target_of(rule.target_name);
  if (rule.target < 0)
    return fail(Status::INVALID_ARGUMENT,
                "'%.40s' is no target: an entry of the driver ABI, any or completion is due",
                rule.target_name.c_str());
  for (size_t i = 1; i < words.size(); ++i) CALRT_TRY(read_word(rule, words[i]));
  if (rule.settings.empty() && !rule.has_shape)
    return fail(Status::INVALID_ARGUMENT, "it says nothing to do");
  if (rule.has_shape && rule.has_when)
    return fail(Status::INVALID_ARGUMENT, "what a device is and lacks holds always: no condition");
  return rule;
}

Result<std::unique_ptr<FaultRules>> FaultRules::parse(const std::string& text) {
  if (text.size() > kMostText)
    return fail(Status::INVALID_ARGUMENT, "fault: %zu bytes of rules, at most %zu are allowed",
                text.size(), kMostText);
  auto rules = std::make_unique<FaultRules>();
  for (const std::string& part : split_outside_quotes(text, '/')) {
    auto rule = rules->read_rule(part);
    if (!rule.ok())
      return fail(Status::INVALID_ARGUMENT, "fault: rule %zu '%.80s': %s", rules->rules_.size() + 1,
                  part.c_str(), rule.error().message.c_str());
    if (rules->rules_.size() == kMostRules)
      return fail(Status::INVALID_ARGUMENT, "fault: more than %zu rules", kMostRules);
    rules->about_[static_cast<size_t>(rule->target)] = true;
    rules->rules_.push_back(*std::move(rule));
  }
  return rules;
}

bool When::met(uint64_t count) const {
  if (nth != 0) return count == nth;
  if (count < from || (count - from + 1) % every != 0) return false;
  return chance >= 1 || static_cast<double>(mixed(seed ^ mixed(count)) >> 11) < chance * 0x1p53;
}

Effect FaultRules::meet(int target) {
  Effect effect;
  const bool any = target != kCompletion && (kinds_of(target) & OF_STATUS) != 0 && about(kAny);
  if (!about(target) && !any) return effect;
  const std::scoped_lock lock(mutex_);
  for (Rule& rule : rules_) {
    if (rule.target != target && !(any && rule.target == kAny)) continue;
    if (!rule.when.met(++rule.seen) || rule.hits >= rule.when.times) continue;
    ++rule.hits;
    for (const Setting& setting : rule.settings) setting.set(effect, setting.value);
  }
  return effect;
}

std::vector<std::pair<std::string, uint64_t>> FaultRules::counters() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::pair<std::string, uint64_t>> all;
  for (const Rule& rule : rules_)
    all.emplace_back(std::to_string(all.size() + 1) + "." + rule.target_name, rule.hits);
  return all;
}

void Shape::apply(cald_device_info& info) const {
  const auto change = [&](size_t end, auto& field, const auto& wanted) {
    if (wanted && end <= info.struct_size)
      field = static_cast<std::remove_reference_t<decltype(field)>>(*wanted);
  };
#define CALRT_CHANGE(field) \
  change(offsetof(cald_device_info, field) + sizeof info.field, info.field, field)
  CALRT_CHANGE(completion);
  CALRT_CHANGE(clock);
  CALRT_CHANGE(exclusive);
  CALRT_CHANGE(sessions);
  CALRT_CHANGE(depth);
  CALRT_CHANGE(queue);
#undef CALRT_CHANGE
  if (id && offsetof(cald_device_info, id) + sizeof info.id <= info.struct_size)
    info.id = id->c_str();
}

void answer(Call& call, const Effect& effect) {
  const char* text = effect.message.empty() ? "answered by a fault rule" : effect.message.c_str();
  answer(call, Answer{effect.status.value_or(CALD_OK), effect.native, effect.unmapped, text});
}

}  // namespace calrt::layers
