// SPDX-License-Identifier: Apache-2.0
#include "layers/completion_tap.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "base/process.h"

namespace calrt::layers {
namespace {

std::atomic<uint64_t> last_tag{0};  // of the process, so that no tag comes twice, in a child either

struct Tags {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<CompletionTap>> known;

  static Tags& get() { return per_process<Tags>(); }
};

}  // namespace

CompletionTap::~CompletionTap() { untap(); }

uint64_t CompletionTap::tap() {
  Tags& tags = Tags::get();
  const std::scoped_lock lock(tags.mutex);
  tag_ = ++last_tag;
  tags.known.emplace(tag_, weak_from_this());
  return tag_;
}

void CompletionTap::untap() {
  Tags& tags = Tags::get();
  const std::scoped_lock lock(tags.mutex);
  tags.known.erase(tag_);
}

void CompletionTap::told(void* tag, const cald_completion* completion) {
  if (completion == nullptr) return;
  std::shared_ptr<CompletionTap> tap;
  {
    Tags& tags = Tags::get();
    const std::scoped_lock lock(tags.mutex);
    const auto found = tags.known.find(reinterpret_cast<uintptr_t>(tag));
    if (found != tags.known.end()) tap = found->second.lock();
  }
  if (tap != nullptr) tap->complete(*completion);
}

}  // namespace calrt::layers
