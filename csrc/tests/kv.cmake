# SPDX-License-Identifier: Apache-2.0
# KV bookkeeping in every state, under every failure, and by many threads.
calrt_test(kv_states)
calrt_test(geometry)
calrt_test(lane_allocations)
calrt_test(lane_table_moves)
calrt_test(lane_stress)
calrt_test(lane_table_parking)
