// SPDX-License-Identifier: Apache-2.0
// The fault layer: makes a driver misbehave on purpose, by rules written as text.
//
//   rules  := rule ('/' rule)*
//   rule   := target word*             words are separated by spaces: NAME or NAME=VALUE
//   target := an entry of driver.h ("submit", "buffer_alloc", ...)
//           | "any"                    every entry that returns a status
//           | "completion"             the end of a job, as it is told; jobs count as submitted
//           | "device_info"            what the device says of itself (also when enumerated)
//
// When (none = always). Each rule counts the calls of its target, from 1:
//   nth=N  only the Nth     from=N  the Nth and later    every=N  every Nth (of those from `from`)
//   times=N  at most N hits     p=0.1 seed=7  by chance, the same chance for the same seed
//
// What, for an entry. Several may stand together; of two rules that meet the later one wins.
//   status=S       the driver is not called, this is the answer: any number (30, -1) or a name
//   native=N message="text" unmapped    the vendor's number, the text, "the map has no such row"
//   throw, throw=other                  a std::exception, or something that is none, comes out
//   after          status or throw only after the driver was called and did its work
//   delay_ms=N     the call takes that much longer (at most 60000)
//   short=N        buffer_transfer, buffer_h2d, buffer_d2h: the last N bytes are not moved;
//                  buffer_transfer says so in `moved`, the others can only say it by a status
//   hide           an optional entry is lacking
// An entry that returns nothing does its work before it throws.
//
// What, for a completion:
//   status=S native=N unmapped message="text" state=done|failed|cancelled|N    told instead
//   drop           never told
//   hold           told when job_cancel asks (as CANCELLED; cancel=normal: as it truly ended).
//                  A session that is closed tells it, too, but calrt closes none with such a job
//   swap           told after the next completion of its session
//   delay_ms=N     told that much later, on a thread of the layer
//   thread         told on a thread of the layer
//   early          told before submit returns
//   twice          told twice
//   seq=N          with a job_seq that is N too high
//   short_in=N short_out=N    bytes_in or bytes_out is N less than was bound
//   nan, flip      the outputs are NaN, or their bits 0x55 are flipped
// Until a job is told, job_query says RUNNING, job_wait ends at its deadline and job_cancel is OK.
//
// What, for device_info (always; no when): completion=callback|wait|poll clock=real|virtual
// exclusive=0|1 sessions=N depth=N queue=N id=text. With completion=wait the driver's on_complete
// is swallowed, with completion=poll it is told inside the poll entry, which the driver must have.
//
// The points of a driver in the runtime's fault list, as rules:
// clang-format off
//   F01 submit fails                      submit status=SUBMIT_FAILED nth=3
//   F02 accepted, never runs              completion drop nth=2
//   F03 completes after the deadline      completion swap nth=2   or   completion delay_ms=200 nth=2
//   F04 completes although cancelled      completion hold cancel=normal nth=2
//   F05 completes twice                   completion twice every=3
//   F06 out of order                      completion swap every=2
//   F07 part of the input is moved        buffer_transfer short=4 nth=2   or   completion short_in=4
//   F08 output damaged or short           completion flip p=0.1 seed=7, nan, or short_out=2
//   F11 device lost                       any status=DEVICE_LOST from=40
//   F12 queue full                        submit status=QUEUE_FULL every=3
//   F13 slow device                       completion delay_ms=50
//   F16 unknown numbers                   submit status=-1   or   completion status=30 nth=2
//   F17 completes before submit returns   completion early
// clang-format on
// Counters: "fault.N.TARGET" is how often the Nth rule was met.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

// INVALID_ARGUMENT naming the rule and the word that has no meaning; "" is a layer without rules.
Result<std::shared_ptr<Layer>> make_fault_layer(const std::string& rules);

}  // namespace calrt::layers
