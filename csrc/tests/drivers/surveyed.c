/* SPDX-License-Identifier: Apache-2.0
 * null with more to ask about: two chips with links, rules of its own, a clock that is a second
 * ahead, binding sets that are counted; and, when told, answers that no driver may give. */
#include "tests/drivers/surveyed.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);

static cald_driver_table table;
static const cald_driver_table* null_table;
static surveyed state;

surveyed* surveyed_state(void) { return &state; }

static cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  const cald_status answered = null_table->device_info(device, out, err);
  out->id = "surveyed:7";
  out->domains = CALD_DOMAIN_HOST;
  out->completion = CALD_COMPLETION_CALLBACK;
  return answered;
}

static cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  (void)device, (void)err;
  static const cald_chip chip0 = {sizeof(cald_chip), 0, "left", 4096};
  static const cald_chip chip1 = {sizeof(cald_chip), 1, "right", 0};
  static const cald_chip cut = {4, 1, NULL, 0};
  static const cald_chip* const chips[] = {&chip0, &chip1};
  static const cald_chip* const cut_chips[] = {&chip0, &cut};
  static const cald_link links[] = {{0, 1, 1000, 5}, {CALD_HOST_CHIP, 0, 0, 0}};
  static const cald_link nowhere[] = {{0, 2, 1000, 5}, {CALD_HOST_CHIP, 0, 0, 0}};
  static const uint64_t sessions[] = {3};
  static const char* const modes[] = {"none", "tensor"};
  static const char* const placements[] = {"chips:0+1", NULL};
  out->n_chips = state.wrong == SURVEYED_TOO_MANY_CHIPS ? 65 : 2;
  out->chips = state.wrong == SURVEYED_NO_CHIP_LIST ? NULL
               : state.wrong == SURVEYED_SHORT_CHIP ? cut_chips
                                                    : chips;
  out->n_links = 2;
  out->links = state.wrong == SURVEYED_LINK_TO_NOWHERE ? nowhere : links;
  out->n_sessions = 1;
  out->session_chips = sessions;
  out->n_modes = 2;
  out->modes = modes;
  out->n_placements = 2;
  out->placements = placements;
  return CALD_OK;
}

static cald_status buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                                cald_error* err) {
  const cald_status answered = null_table->buffer_rules(device, domain, out, err);
  if (answered != CALD_OK) return answered;
  out->align = state.wrong == SURVEYED_ALIGN_3 ? 3 : 4096;
  out->padding = state.wrong == SURVEYED_PADDING_0 ? 0 : 512;
  out->max_bytes = 1 << 20;
  return CALD_OK;
}

static cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                               cald_trace_info* info, cald_error* err) {
  const cald_status answered = null_table->trace_drain(device, out, count, info, err);
  for (uint32_t i = 0; i < *count; ++i) out[i].t_ns += SURVEYED_CLOCK_AHEAD_NS;
  info->device_ns += SURVEYED_CLOCK_AHEAD_NS;
  info->residual_ns = SURVEYED_RESIDUAL_NS;
  if (state.wrong == SURVEYED_DRAINS_TOO_MUCH) *count = UINT32_MAX;
  return answered;
}

static cald_status binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                                    uint32_t n_bindings, cald_binding_set** out, cald_error* err) {
  if (state.wrong == SURVEYED_SET_REFUSED) return CALD_OUT_OF_DEVICE_MEMORY;
  if (state.wrong == SURVEYED_NO_SET_HANDLE) return CALD_OK;
  state.set_bytes = 0;
  for (uint32_t i = 0; i < n_bindings; ++i) state.set_bytes += bindings[i].bytes;
  ++state.sets_made;
  ++state.sets_alive;
  return null_table->binding_set_make(model, graph, bindings, n_bindings, out, err);
}

static void binding_set_free(cald_binding_set* set) {
  --state.sets_alive;
  null_table->binding_set_free(set);
}

static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  state.set_of_job = desc->set;
  return null_table->submit(session, desc, out, err);
}

static cald_status model_footprint(cald_device* device, const cald_package* package,
                                   const cald_load_options* options, cald_footprint* out,
                                   cald_error* err) {
  (void)device, (void)package, (void)err;
  out->host_bytes = options->lanes;
  out->device_bytes = options->cells;
  if (state.wrong == SURVEYED_LARGE_FOOTPRINT) out->host_bytes = (uint64_t)1 << 60;
  return CALD_OK;
}

static cald_status model_load(cald_device* device, const cald_package* package,
                              const cald_load_options* options, cald_model** out, cald_error* err) {
  ++state.loads;
  return null_table->model_load(device, package, options, out, err);
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  const cald_status answered = null_driver_entry(host, abi_requested, &null_table);
  if (answered != CALD_OK) return answered;
  table = *null_table;
  table.name = "surveyed";
  table.device_info = device_info;
  table.device_topology = device_topology;
  table.buffer_rules = buffer_rules;
  table.trace_drain = trace_drain;
  table.binding_set_make = binding_set_make;
  table.binding_set_free = binding_set_free;
  table.submit = submit;
  table.model_footprint = model_footprint;
  table.model_load = model_load;
  *out = &table;
  return CALD_OK;
}
