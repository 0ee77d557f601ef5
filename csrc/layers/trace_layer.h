// SPDX-License-Identifier: Apache-2.0
// The trace layer: what passes the driver ABI as a file that Perfetto (ui.perfetto.dev) and
// chrome://tracing open.
//
//   trace:FILE [events=N] [mb=N] [wait_ms=N]
//
//   events  room of the device's own trace that the layer starts, 0 = leave that alone; 65536
//   mb      longest file in MiB; what comes later is left out and counted; 1024
//   wait_ms how long an event may wait to be written, 0 = not at all; 100
//
// The file is Chrome's JSON in its array form, written as it goes: readable whenever the process
// dies, whole once the driver is closed. On it, in microseconds of CLOCK_MONOTONIC:
//   - a track per thread with a slice for each call of an entry (status, job_seq, bytes) and for
//     each on_complete
//   - a span per job from submit to completion, in it queue, h2d, infer and d2h by job_timing
//   - the device's own events on a process of its own, brought onto the host's clock by the pairs
//     of readings that trace_drain gives. How well is said there as an event "clock alignment" and
//     as the process's label: offset, drift and the residual, within which host and device truly
//     are. A device on virtual time is shown as it is.
// The layer drains the device's trace on the threads that call entries, not more often than every
// 20 ms; a program's own trace_start and trace_drain work beside it, with the drops that its own
// capacity makes.
//
// Counters: trace.events, trace.jobs, trace.bytes, trace.left_out, trace.device_events,
// trace.device_dropped (by the device), trace.device_unpaired, trace.residual_ns (of the worst
// device).
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

Result<std::shared_ptr<Layer>> make_trace_layer(const std::string& config);

}  // namespace calrt::layers
