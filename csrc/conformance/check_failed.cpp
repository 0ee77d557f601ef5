// SPDX-License-Identifier: Apache-2.0
// JOB-25: what a job leaves behind that was wrong from the start.
#include "base/status.h"
#include "conformance/player.h"

namespace calrt::conformance {
namespace {

struct Wrong {
  const char* what;
  // Makes a call wrong that was to write `tokens` to cells [0, ...) of lane 0; false if it cannot.
  bool (*make)(Player& player, GraphCall& call, const Tokens& tokens);
};

bool wrong_value(GraphCall& call, int32_t role, std::vector<int32_t> values, size_t at,
                 int32_t value) {
  if (call.io(role) == nullptr || at >= values.size()) return false;
  values[at] = value;
  call.set(role, values);
  return true;
}

const Wrong kWrongs[] = {
    {"its last token is behind the vocabulary",
     [](Player& player, GraphCall& call, const Tokens& tokens) {
       return wrong_value(call, CALD_ROLE_TOKENS, tokens, tokens.size() - 1,
                          static_cast<int32_t>(player.info().vocab));
     }},
    {"its last position is behind the lane",
     [](Player& player, GraphCall& call, const Tokens& tokens) {
       std::vector<int32_t> positions(tokens.size());
       for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
       return wrong_value(call, CALD_ROLE_POSITIONS, positions, positions.size() - 1,
                          static_cast<int32_t>(player.info().cells));
     }},
    {"n_valid is more than the chunk",
     [](Player&, GraphCall& call, const Tokens&) {
       return wrong_value(call, CALD_ROLE_N_VALID, {0}, 0,
                          static_cast<int32_t>(call.graph().chunk) + 1);
     }},
    {"logit_rows asks for a row that there is not",
     [](Player&, GraphCall& call, const Tokens& tokens) {
       if (call.io(CALD_ROLE_LOGIT_ROWS) == nullptr) return false;
       call.bind_rows({0, static_cast<int32_t>(tokens.size())});
       return true;
     }},
};

// Returns false where the job ended by a status that may have harmed its lanes.
bool harms_none(Kit& kit, GraphCall& call, const char* what) {
  Told* told = Told::make();
  const cald_job_desc desc = call.desc({}, told);
  cald_session* session = kit.session();
  cald_job* made = nullptr;
  if (kit.call("submit", [&](cald_error* err) {
        return kit.table().submit(session, &desc, &made, err);
      }) != CALD_OK)
    return true;
  Job job(kit, made, told, desc.job_seq);
  job.wait();
  if (job.state() != CALD_JOB_FAILED)
    broken_rule("JOB-08", "%s: %s, and the job ended in state %d", call.graph().name, what,
                job.state());
  if (job.failure() < 0 || job.failure() > 29)
    broken_rule("ERR-01", "a failed job has the status %d", job.failure());
  return std::strcmp(status_row(job.failure()).damage, "call") == 0;
}

CONFORMANCE_CHECK("JOB-25", "") {
  Player player(kit);
  needs_results(kit, player);
  constexpr size_t kCells = 6;
  const uint32_t feeder = player.stepper(0);
  const Tokens prompt = player.prompt(3, kCells), other = player.prompt(99, kCells);
  bool tested = false;
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    const bool decode = call.graph().kind == CALD_GRAPH_DECODE;
    for (const Wrong& wrong : kWrongs) {
      player.feed(feeder, 0, prompt);
      const Bytes before = player.step(0, 1, kCells);
      Tokens tokens(other.begin(), other.begin() + 1);
      if (decode) {
        // A second row, which is wrong, behind one that is right; one that is wrong, if one fits.
        const bool two = call.graph().batch > 1 && player.reaches(graph, 1);
        if (two) tokens.push_back(other[1]);
        std::vector<Row> rows = {{tokens[0], 0, 0}};
        if (two) rows.push_back({tokens[1], 1, 1});
        player.fill_decode(call, rows);
      } else {
        const size_t n = call.io(CALD_ROLE_N_VALID) != nullptr
                             ? std::min<size_t>(kCells, call.graph().chunk)
                             : call.graph().chunk;
        if (n >= player.info().cells) continue;
        tokens = player.prompt(99, n);
        player.fill_prefill(call, tokens, 0, 0);
      }
      if (!wrong.make(player, call, tokens)) continue;
      if (!harms_none(kit, call, wrong.what)) continue;
      tested = true;
      REQUIRE(player.step(0, 1, kCells) == before,
              "%s was refused, or failed without harm by its status, since %s: and it has written "
              "to its lane",
              call.graph().name, wrong.what);
    }
  }
  if (!tested) skip("every wrong job ended by a status that may harm its lanes");
}

}  // namespace
}  // namespace calrt::conformance
