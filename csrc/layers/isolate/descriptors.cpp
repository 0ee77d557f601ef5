// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/descriptors.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace calrt::isolate {
namespace {

constexpr size_t kAtOnce = 128;  // the kernel takes up to 253

struct ParcelHead {
  uint64_t tag;
  uint32_t here, left;  // descriptors with this message, and in those to come
};

// The room for a message's descriptors.
struct Room {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kAtOnce * sizeof(int))];
};

msghdr message_of(iovec* data, Room* room) {
  msghdr message{};
  message.msg_iov = data;
  message.msg_iovlen = 1;
  message.msg_control = room->bytes;
  message.msg_controllen = sizeof room->bytes;
  return message;
}

}  // namespace

Result<void> send_fds(int socket, uint64_t tag, const std::vector<int>& fds) {
  for (size_t sent = 0; sent < fds.size() || sent == 0;) {
    const size_t here = std::min(kAtOnce, fds.size() - sent);
    ParcelHead head{tag, static_cast<uint32_t>(here),
                    static_cast<uint32_t>(fds.size() - sent - here)};
    iovec data{&head, sizeof head};
    Room room{};
    msghdr message = message_of(&data, &room);
    message.msg_controllen = here != 0 ? CMSG_SPACE(here * sizeof(int)) : 0;
    if (here != 0) {
      cmsghdr* control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = SOL_SOCKET;
      control->cmsg_type = SCM_RIGHTS;
      control->cmsg_len = CMSG_LEN(here * sizeof(int));
      std::memcpy(CMSG_DATA(control), fds.data() + sent, here * sizeof(int));
    }
    ssize_t done = 0;
    while ((done = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
    }
    if (done != static_cast<ssize_t>(sizeof head))
      return fail(Status::DEVICE_LOST, "isolate: descriptors cannot be sent: %s",
                  std::strerror(errno));
    sent += here;
    if (fds.empty()) break;
  }
  return {};
}

bool receive_fds(int socket, Parcel* out) {
  *out = {};
  ParcelHead head{};
  do {
    iovec data{&head, sizeof head};
    Room room{};
    msghdr message = message_of(&data, &room);
    ssize_t got = 0;
    while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL)) < 0 &&
           errno == EINTR) {
    }
    if (got != static_cast<ssize_t>(sizeof head)) return false;
    out->tag = head.tag;
    for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
         control = CMSG_NXTHDR(&message, control)) {
      if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      const size_t had = out->fds.size();
      out->fds.resize(had + count);
      std::memcpy(out->fds.data() + had, CMSG_DATA(control), count * sizeof(int));
    }
  } while (head.left != 0);
  return true;
}

}  // namespace calrt::isolate
