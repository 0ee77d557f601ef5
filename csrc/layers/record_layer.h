// SPDX-License-Identifier: Apache-2.0
// The record layer: every call of a driver, with what jobs were given and gave, as lines of JSON.
//
//   record:FILE [data=N] [mb=N] [wait_ms=N]
//
//   data  bytes of a job's input or output that are kept whole; a longer one is kept as its SHA-256
//         alone; 1048576
//   mb    longest file in MiB; what comes later is left out and counted; 4096
//   wait_ms  how long a line may wait to be written, 0 = not at all; 100
//
// Lines, in order of their being known; times are ns of CLOCK_MONOTONIC, handles "buffer#3":
//   {"format":"calrt-record","version":1,"driver":"null",...}
//   {"call":12,"entry":"buffer_alloc","t_ns":..,"ns":..,"thread":1,"args":["device#1",1,64,64],
//    "made":"buffer#3","status":0}
//   {"call":45,"entry":"submit",...,"job":3,"key":"..","what":"graph 1","job_seq":7,
//    "inputs":[{"role":1,"bytes":4,"sha256":"..","hex":".."}],"status":0}
//   {"job":3,"t_ns":..,"state":3,"status":0,"off":0,"bytes_in":..,"bytes_out":..,"native":0,
//    "flags":0,"outputs":[...]}                       a completion; off: its job_seq minus the
//    job's
//   {"job":3,"why":{"code":25,"native":9,"flags":0,"text":".."}}    what job_query said of it
// A call that failed has "why" too, one that threw "threw":true. A completion inside submit stands
// before its submit's line. The file ends with a whole line whenever the process dies.
//
// Inputs are read before the job is submitted, outputs inside on_complete, so an end is told later
// by the time that hashing takes; where there is no on_complete, when job_wait or job_query first
// say that the job has ended. Only what the host can address is read.
//
// Counters: record.calls, record.jobs, record.bytes, record.left_out.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

Result<std::shared_ptr<Layer>> make_record_layer(const std::string& config);

}  // namespace calrt::layers
