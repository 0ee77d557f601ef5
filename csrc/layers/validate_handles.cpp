// SPDX-License-Identifier: Apache-2.0
#include "layers/validate_handles.h"

#include <algorithm>
#include <cstdio>

namespace calrt::layers {
namespace {

constexpr size_t kRemembered = 4096;  // dead handles; older ones are "unknown"
constexpr size_t kMostLost = 4096;    // named in the leak table

bool below(const HandleRef& handle, const HandleRef& ancestor) {
  for (HandleRef at = handle; at != nullptr; at = at->parent)
    if (at == ancestor) return true;
  return false;
}

}  // namespace

HandleRef HandleTable::find(Kind kind, const void* pointer) const {
  const auto found = living_.find({kind, pointer});
  return found != living_.end() ? found->second : nullptr;
}

std::optional<Refusal> HandleTable::check(Kind kind, const void* pointer, bool closes) const {
  char text[160];
  if (pointer == nullptr) {
    if (closes) return {};
    std::snprintf(text, sizeof text, "the %s is NULL", kind_name(kind));
    return Refusal{Rule::null_argument, text};
  }
  if (find(kind, pointer) != nullptr) return {};
  const auto dead = dead_.find(pointer);
  if (dead != dead_.end() && dead->second.kind == kind) {
    std::snprintf(text, sizeof text, "%s %p has been closed already", kind_name(kind), pointer);
    return Refusal{closes ? Rule::double_free : Rule::stale_handle, text};
  }
  for (int other = 0; other < kKinds; ++other)
    if (const HandleRef found = find(static_cast<Kind>(other), pointer)) {
      std::snprintf(text, sizeof text, "%p is no %s but a %s", pointer, kind_name(kind),
                    kind_name(found->kind));
      return Refusal{Rule::wrong_kind, text};
    }
  std::snprintf(text, sizeof text, "%p: the driver gave no such %s", pointer, kind_name(kind));
  return Refusal{Rule::unknown_handle, text};
}

HandleRef HandleTable::add(HandleRef handle) {
  if (handle->parent != nullptr) ++handle->parent->children;
  HandleRef& place = living_[{handle->kind, handle->pointer}];
  HandleRef before = std::exchange(place, std::move(handle));
  if (before != nullptr) {
    if (before->parent != nullptr) --before->parent->children;
    if (lost_.size() < kMostLost) lost_.push_back(before);
  }
  return before;
}

void HandleTable::hold(const HandleRef& holder, const HandleRef& held) {
  ++held->holders;
  holder->holds.push_back(held);
}

void HandleTable::let_go(Handle& holder) {
  for (const HandleRef& held : holder.holds) --held->holders;
  holder.holds.clear();
}

HandleRef HandleTable::a_child(const HandleRef& of) const {
  for (const auto& [key, handle] : living_)
    if (handle->parent == of) return handle;
  return nullptr;
}

void HandleTable::bury(const HandleRef& handle) {
  let_go(*handle);
  if (handle->parent != nullptr) --handle->parent->children;
  dead_[handle->pointer] = {handle->kind, ++serial_};
  order_.emplace_back(handle->pointer, serial_);
  if (order_.size() <= kRemembered) return;
  const auto [pointer, serial] = order_.front();
  order_.pop_front();
  const auto found = dead_.find(pointer);
  if (found != dead_.end() && found->second.serial == serial) dead_.erase(found);
}

std::vector<HandleRef> HandleTable::close(const HandleRef& handle) {
  std::vector<HandleRef> lost;
  if (handle->children > 0)
    for (const auto& [key, other] : living_)
      if (other != handle && below(other, handle)) lost.push_back(other);
  for (const HandleRef& child : lost) {
    living_.erase({child->kind, child->pointer});
    bury(child);
    if (lost_.size() < kMostLost) lost_.push_back(child);
  }
  living_.erase({handle->kind, handle->pointer});
  bury(handle);
  return lost;
}

std::vector<HandleRef> HandleTable::leaks(const HandleRef& driver) const {
  std::vector<HandleRef> all;
  for (const auto& [key, handle] : living_)
    if (handle != driver && below(handle, driver)) all.push_back(handle);
  for (const HandleRef& handle : lost_)
    if (below(handle, driver)) all.push_back(handle);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->call < b->call; });
  return all;
}

std::string HandleTable::describe(const Handle& handle) {
  char text[192];
  std::snprintf(text, sizeof text, "%s %p (%s%smade by call %llu)", kind_name(handle.kind),
                handle.pointer, handle.what.c_str(), handle.what.empty() ? "" : ", ",
                static_cast<unsigned long long>(handle.call));
  return text;
}

}  // namespace calrt::layers
