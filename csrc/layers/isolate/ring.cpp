// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/ring.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "layers/isolate/channel.h"

namespace calrt::isolate {
namespace {

struct RecordHead {
  uint32_t bytes;  // of the record behind it
  Record kind;
};

uint64_t room_of(uint64_t bytes) { return (sizeof(RecordHead) + bytes + 7) / 8 * 8; }

// Copies over the ring's end.
template <class To, class From>
void copy_round(To&& piece, uint64_t at, uint64_t bytes, From* own) {
  const uint64_t place = at % kRingBytes, first = std::min(bytes, kRingBytes - place);
  piece(place, own, first);
  piece(0, own + first, bytes - first);
}

}  // namespace

void RingWriter::write(Record kind, std::string_view record, bool must) {
  const RecordHead head{static_cast<uint32_t>(record.size()), kind};
  const uint64_t bytes = room_of(record.size()), most = must ? kRingBytes : kRingBytes / 2;
  {
    const std::scoped_lock lock(mutex_);
    const uint64_t at = state_->written.load();
    while (at + bytes - state_->read.load() > most) {
      if (!must || bytes > most) {
        state_->dropped.fetch_add(1);
        return;
      }
      usleep(200);  // the parent is behind; when it dies, so does this process
    }
    const auto put = [&](uint64_t place, const char* from, uint64_t n) {
      std::memcpy(data_ + place, from, n);
    };
    copy_round(put, at, sizeof head, reinterpret_cast<const char*>(&head));
    copy_round(put, at + sizeof head, record.size(), record.data());
    state_->written.store(at + bytes);
  }
  if (state_->signalled.exchange(1) == 0) signal_eventfd(eventfd_);
}

bool RingReader::read(const std::function<bool(Record, std::string_view)>& take) {
  state_->signalled.store(0);  // before looking: what comes after the look wakes again
  const uint64_t written = state_->written.load();
  for (uint64_t at = at_.load(); at != written;) {
    const uint64_t there = written - at;
    if (there > kRingBytes || there < sizeof(RecordHead)) return false;
    const auto get = [&](uint64_t place, char* to, uint64_t n) {
      std::memcpy(to, data_ + place, n);
    };
    RecordHead head{};
    copy_round(get, at, sizeof head, reinterpret_cast<char*>(&head));
    if (room_of(head.bytes) > there) return false;
    record_.resize(head.bytes);
    copy_round(get, at + sizeof head, head.bytes, record_.data());
    if (!take(head.kind, record_)) return false;
    at += room_of(head.bytes);
    at_.store(at);
    state_->read.store(at);
  }
  return true;
}

}  // namespace calrt::isolate
