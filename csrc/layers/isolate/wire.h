// SPDX-License-Identifier: Apache-2.0
// Messages between the two processes: a Writer fills one, a Reader takes it apart. Both have the
// same functions, so that one carry() per struct (wire_structs.h) does for either direction and the
// two ends cannot disagree. Same machine, same build: numbers and frozen structs go as they are.
//
// A Reader works on a private copy and believes nothing: each length and count is held against what
// is there. The first thing that does not fit makes it bad, and from then on it gives zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "calrt/driver.h"

namespace calrt::isolate {

inline constexpr uint32_t kMostText = 4096;  // bytes of one string

// Texts that live as long as their driver; equal ones are one. Thread-safe.
class Strings {
 public:
  // "?" once there are more than any driver can mean.
  const char* keep(std::string_view text) {
    constexpr size_t kMost = 65536;
    const std::scoped_lock lock(mutex_);
    const auto known = kept_.find(std::string(text));
    if (known != kept_.end()) return known->c_str();
    return kept_.size() < kMost ? kept_.emplace(text).first->c_str() : "?";
  }

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> kept_;  // of nodes: what they hold does not move
};

// The memory of what a Reader makes. Texts go to `strings` where there are any.
class Pool {
 public:
  explicit Pool(Strings* strings = nullptr) : strings_(strings) {}
  void* take(size_t bytes) {  // zeroed
    blocks_.push_back(std::make_unique<Piece[]>(bytes / sizeof(Piece) + 1));
    return blocks_.back().get();
  }
  const char* keep(std::string_view text) {
    if (strings_ != nullptr) return strings_->keep(text);
    auto* copy = static_cast<char*>(take(text.size() + 1));
    if (!text.empty()) std::memcpy(copy, text.data(), text.size());
    return copy;
  }

 private:
  struct alignas(std::max_align_t) Piece {  // bytes: what has padding is not zeroed everywhere
    unsigned char bytes[alignof(std::max_align_t)];
  };
  Strings* strings_;
  std::vector<std::unique_ptr<Piece[]>> blocks_;
};

// A caller's struct, which may be shorter or longer than ours: what is absent is 0.
template <class T>
T whole(const T& given) {
  T copy{};
  const size_t bytes = given.struct_size < sizeof copy ? given.struct_size : sizeof copy;
  std::memcpy(static_cast<void*>(&copy), &given, bytes);
  copy.struct_size = static_cast<uint32_t>(bytes);
  return copy;
}

class Writer {
 public:
  static constexpr bool kReads = false;
  Writer(unsigned char* room, size_t bytes) : at_(room), room_(bytes), begin_(room) {}
  bool good() const { return good_; }  // false: it did not fit
  size_t bytes() const { return static_cast<size_t>(at_ - begin_); }

  void raw(const void* data, size_t bytes) {
    if (!good_ || bytes > room_) {
      good_ = false;
      return;
    }
    if (bytes != 0) std::memcpy(at_, data, bytes);
    at_ += bytes;
    room_ -= bytes;
  }
  template <class T>
  void pod(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    raw(&value, sizeof value);
  }
  void check(bool) {}
  void text(const char* value) {
    const size_t bytes = value != nullptr ? strnlen(value, kMostText) : 0;
    pod(value != nullptr ? static_cast<uint32_t>(bytes) : UINT32_MAX);
    raw(value, bytes);
  }
  // A struct that starts with its size, pointers and all: carry() names the pointers after it.
  template <class T>
  void sized(T& value) {
    pod(value.struct_size);
    raw(&value, value.struct_size);
  }
  // A list of frozen structs or numbers.
  template <class T>
  void array(uint32_t count, const T* list) {
    if (list == nullptr) count = 0;
    pod(count);
    raw(list, count * sizeof(T));
  }
  void texts(uint32_t count, const char* const* list) {
    if (list == nullptr) count = 0;
    pod(count);
    for (uint32_t i = 0; i < count && good_; ++i) text(list[i]);
  }
  template <class T>
  void pointer(const T* value) {
    pod(static_cast<uint8_t>(value != nullptr));
    if (value == nullptr) return;
    T copy = whole(*value);
    carry(*this, copy);
  }
  template <class T>
  void pointers(uint32_t count, const T* const* list) {
    if (list == nullptr) count = 0;
    pod(count);
    for (uint32_t i = 0; i < count && good_; ++i) pointer(list[i]);
  }

 private:
  unsigned char* at_;
  size_t room_;
  unsigned char* begin_;
  bool good_ = true;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  // `message` stays until the Reader goes; what it makes lives in `pool`.
  Reader(std::string_view message, Pool& pool) : left_(message), pool_(&pool) {}
  bool good() const { return good_; }
  std::string_view left() const { return left_; }

  const char* raw(size_t bytes) {  // null if there is not so much
    if (!good_ || bytes > left_.size()) {
      good_ = false;
      return nullptr;
    }
    const char* at = left_.data();
    left_.remove_prefix(bytes);
    return at;
  }
  template <class T>
  void pod(T& value) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    const char* at = raw(sizeof value);
    if (at != nullptr)
      std::memcpy(static_cast<void*>(&value), at, sizeof value);
    else
      value = T{};
  }
  template <class T>
  T get() {
    T value{};
    pod(value);
    return value;
  }
  // What is read must hold, or nothing of the message does.
  void check(bool holds) { good_ = good_ && holds; }
  void text(const char*& value) {
    value = nullptr;
    const auto bytes = get<uint32_t>();
    if (bytes == UINT32_MAX || !good_) return;
    check(bytes <= kMostText);
    const char* at = raw(bytes);
    if (at == nullptr) return;
    check(bytes == 0 || std::memchr(at, '\0', bytes) == nullptr);
    if (good_) value = pool_->keep({at, bytes});
  }
  template <class T>
  void sized(T& value) {
    value = T{};
    const auto bytes = get<uint32_t>();
    check(bytes >= sizeof(uint32_t) && bytes <= sizeof value);
    const char* at = raw(bytes);
    if (at == nullptr) return;
    std::memcpy(static_cast<void*>(&value), at, bytes);
    value.struct_size = bytes;
  }
  template <class T>
  void array(uint32_t& count, const T*& list) {
    list = nullptr;
    count = counted(sizeof(T));
    if (count == 0) return;
    auto* copy = static_cast<T*>(pool_->take(count * sizeof(T)));
    std::memcpy(static_cast<void*>(copy), raw(count * sizeof(T)), count * sizeof(T));
    list = copy;
  }
  void texts(uint32_t& count, const char* const*& list) {
    list = nullptr;
    count = counted(sizeof(uint32_t));
    if (count == 0) return;
    auto** copy = static_cast<const char**>(pool_->take(count * sizeof(char*)));
    for (uint32_t i = 0; i < count; ++i) text(copy[i]);
    list = copy;
  }
  template <class T>
  void pointer(const T*& value) {
    value = nullptr;
    if (get<uint8_t>() == 0 || !good_) return;
    auto* copy = new (pool_->take(sizeof(T))) T;
    carry(*this, *copy);
    value = copy;
  }
  template <class T>
  void pointers(uint32_t& count, const T* const*& list) {
    list = nullptr;
    count = counted(1);
    if (count == 0) return;
    auto** copy = static_cast<const T**>(pool_->take(count * sizeof(T*)));
    for (uint32_t i = 0; i < count; ++i) pointer(copy[i]);
    list = copy;
  }
  Pool& pool() { return *pool_; }

 private:
  // A count whose elements, of at least so many bytes each, can be in what is left.
  uint32_t counted(size_t least) {
    const auto count = get<uint32_t>();
    check(count <= left_.size() / least);
    return good_ ? count : 0;
  }

  std::string_view left_;
  Pool* pool_;
  bool good_ = true;
};

}  // namespace calrt::isolate
