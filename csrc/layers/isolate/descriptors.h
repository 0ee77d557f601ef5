// SPDX-License-Identifier: Apache-2.0
// File descriptors from the parent to the child, by a socket. A parcel is a tag and its
// descriptors, in messages of as many as one may have.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace calrt::isolate {

// One sender at a time. They stay the sender's.
Result<void> send_fds(int socket, uint64_t tag, const std::vector<int>& fds);

// A whole parcel, its descriptors the receiver's now. False: the other end is gone.
struct Parcel {
  uint64_t tag = 0;
  std::vector<int> fds;
};
bool receive_fds(int socket, Parcel* out);

}  // namespace calrt::isolate
