// SPDX-License-Identifier: Apache-2.0
// The grammar of manifest-1 as data: one table drives the checks C05 and C08-C12, the texts, and
// the published JSON Schema (docs/manifest-1.schema.json, kept equal by a test).
#pragma once

#include <cstdint>
#include <span>

namespace calrt {

enum class ShapeOf : uint8_t {
  UINT,    // min..max, written without point, exponent or sign
  NUMBER,  // any finite number
  BOOL,
  TEXT,        // min..max bytes
  ID,          // [a-z][a-z0-9_]{0,63}
  HEX64,       // 64 lower-case hex digits
  ADDRESS,     // "0x" and 1-16 lower-case hex digits
  TIME,        // RFC 3339 UTC: 2026-11-29T00:00:00Z
  ENUM,        // one of `words`; with `open` also x-...
  POWER_OF_2,  // uint, min..max
  DIM,         // uint min..max or one of `words`
  AXIS,        // an axis number or one of `words`
  LIST,        // of `element`, min..max items
  TUPLE,       // a list by position: `fields`, then anything
  COLUMNS,     // the names of TUPLE `element`, then x-... names
  OBJECT,      // `fields`
  RANGE,       // G(uint): a list of `element`, or {min, max, step}
  UNION        // an object whose "kind" picks one of `variants`
};

struct ManifestField;
struct ManifestVariant;

struct ManifestType {
  ShapeOf shape;
  uint64_t min = 0, max = UINT64_MAX;
  std::span<const char* const> words = {};
  const ManifestType* element = nullptr;
  std::span<const ManifestField> fields = {};
  std::span<const ManifestVariant> variants = {};
  bool open = false;
};

struct ManifestField {
  const char* name;
  const ManifestType* type;
  bool required = true;
  bool nullable = false;
};

struct ManifestVariant {
  const char* kind;
  const ManifestType* type;
};

inline constexpr uint64_t kMaxManifestUint = (uint64_t{1} << 53) - 1;
inline constexpr uint64_t kMaxCount = (uint64_t{1} << 31) - 1;  // fits the driver ABI's uint32_t
inline constexpr uint64_t kManifestMinor = 0;                   // newest this reader knows

// The whole manifest.
const ManifestType& manifest_schema();

}  // namespace calrt
