# SPDX-License-Identifier: Apache-2.0
# KV bookkeeping, sampler and engine.
calrt_test(lanes)
calrt_test(sequence)
calrt_test(blob)
calrt_test(prefix)
calrt_test(prefix_model)
calrt_test(sampler)
calrt_test(step_core)
calrt_test(reserve)
calrt_runtime_test(runner)
calrt_runtime_test(graph_runner)
