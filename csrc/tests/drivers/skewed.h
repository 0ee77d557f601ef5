/* SPDX-License-Identifier: Apache-2.0
 * What a test knows of libcald_skewed: how its device's clock lies to the host's. */
#ifndef CALRT_TESTS_SKEWED_H
#define CALRT_TESTS_SKEWED_H

/* device = host * (1 + DRIFT_PPM / 10^6) + OFFSET_NS, read with an error up to RESIDUAL_NS. */
#define SKEWED_OFFSET_NS 7000000000ll
#define SKEWED_DRIFT_PPM 200ll
#define SKEWED_RESIDUAL_NS 900ll

#endif
