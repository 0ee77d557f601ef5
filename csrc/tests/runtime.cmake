# SPDX-License-Identifier: Apache-2.0
calrt_test(sha256)
