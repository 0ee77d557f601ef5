// SPDX-License-Identifier: Apache-2.0
// Python arguments into C++ values, each refusal naming the argument. With the GIL held.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sampling/sampler.h"

namespace calrt::bind {

namespace py = pybind11;

using TextMap = std::map<std::string, std::string>;

// InvalidArgumentError: "FIELD is a TYPE, ...", with the value where it is short.
[[noreturn]] void refuse_type(const char* field, const py::handle& value, const std::string& due);

// A sequence or array of whole numbers that fit i32; not bool, not float, one dimension.
std::vector<int32_t> int_list(const char* field, const py::handle& value);
// Whole numbers >= 0 that fit u32.
std::vector<uint32_t> uint_list(const char* field, const py::handle& value);

// Token ids: what int_list takes, each of 0..vocab - 1. The one check that every sequence of tokens
// passes; bytes are none.
std::vector<int32_t> token_ids(const char* field, const py::handle& value, uint32_t vocab);
// Of a caller who knows no vocabulary.
inline constexpr uint32_t kAnyVocab = uint32_t{1} << 31;

// What int_list takes, without a copy where it can be: a contiguous int32 array is looked at where
// it lies, as long as the argument lives.
class IntArgument {
 public:
  IntArgument(const char* field, const py::handle& value);
  IntArgument(const IntArgument&) = delete;
  IntArgument& operator=(const IntArgument&) = delete;
  std::span<const int32_t> values() const { return values_; }

 private:
  std::vector<int32_t> converted_;
  std::span<const int32_t> values_;
};

// Text without lone surrogates and NULs, as UTF-8.
std::string text(const char* field, const py::handle& value);
// None, or a whole number of a range.
std::optional<uint32_t> optional_count(const char* field, const py::handle& value, uint32_t low,
                                       uint32_t high);
// None, or a number of seconds >= 0.
std::optional<double> optional_seconds(const char* field, const py::handle& value);

// Seconds from now as an absolute deadline (CLOCK_MONOTONIC, ns). Refuses negative and NaN; a value
// of more than a hundred years is "never".
uint64_t deadline_in(const char* field, double seconds);
uint64_t now_ns();

// {"temperature": 0.0, ...}; names of SamplingParams. logit_bias: {token: bias}.
SamplingParams sampling_params(const char* field, const py::handle& values);

// dtype of numpy for a calrt dtype; bf16 is ml_dtypes.bfloat16.
py::dtype numpy_dtype(int32_t dtype);
// The calrt dtype of an array, 0 if it has none (or a foreign byte order).
int32_t dtype_of(const py::array& array);

}  // namespace calrt::bind
