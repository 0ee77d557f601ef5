# SPDX-License-Identifier: Apache-2.0
# KV bookkeeping in every state, under every failure, and by many threads.
calrt_test(kv_states)
