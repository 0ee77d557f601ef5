// SPDX-License-Identifier: Apache-2.0
// What the defective driver knows of a job while it lives, and what stands between mock and the
// host's on_complete.
#pragma once

#include <memory>
#include <vector>

#include "tests/drivers/defective.h"
#include "tests/drivers/defective_inputs.h"

namespace calrt::defective {

struct Hook {
  void (*on_complete)(void* user, const cald_completion* completion) = nullptr;  // the host's
  void* user = nullptr;
  const cald_job_desc* desc = nullptr;  // the host's, CALL; null for a KV operation
  cald_model* model = nullptr;
  bool with_set = false;
  int32_t lane = -1;
  unsigned char* out = nullptr;
  uint64_t out_bytes = 0, row_bytes = 0;
  std::vector<unsigned char> out_before;  // of the first row
  std::unique_ptr<Inputs> inputs;
  cald_completion end{};
  bool told_late = false;
  bool wrong = false;  // it had been refused
};

Hook& new_hook(void (*told)(void*, const cald_completion*), void* user);
// Puts a hook between a KV operation and the host's on_complete.
void hook_in(cald_kv_desc* desc);
void tell_now(Hook* hook);
void tell_last_again();

// defective_waits.cpp
void note_job(cald_job* job, Hook* hook);
bool closing();  // a session is being closed
uint32_t unended(cald_session* session);
uint64_t now_of(cald_session* session);

// defective_models.cpp
cald_model* some_model(const cald_device* device);
bool set_is_as_made(const cald_binding_set* set);

}  // namespace calrt::defective
