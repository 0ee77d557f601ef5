# SPDX-License-Identifier: Apache-2.0
# KV bookkeeping, sampler and engine.
calrt_test(lanes)
calrt_test(sequence)
calrt_test(blob)
calrt_test(prefix)
calrt_test(prefix_model)
calrt_test(sampler)
calrt_test(step_core)
calrt_test(in_flight)
calrt_test(reserve)
calrt_runtime_test(runner)
calrt_runtime_test(graph_runner)
calrt_test(host_rotate)
# Over mock: what moves cells.
foreach(name kv_mover lane_scrub prefix_cache)
  calrt_runtime_test(${name})
  add_dependencies(${name}_test cald_mock)
endforeach()
