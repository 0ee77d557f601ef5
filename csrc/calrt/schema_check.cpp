// SPDX-License-Identifier: Apache-2.0
#include "calrt/schema_check.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "calrt/manifest_schema.h"

namespace calrt {
namespace {

constexpr uint64_t kMaxExtensionBytes = 64 * 1024;

bool is_extension(std::string_view name) { return name.size() > 2 && name.substr(0, 2) == "x-"; }

bool all_of(std::string_view text, bool (*accepts)(char)) {
  return std::all_of(text.begin(), text.end(), accepts);
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_lower_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); }
bool is_id_char(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || c == '_'; }

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= 64 && text[0] >= 'a' && text[0] <= 'z' &&
         all_of(text, is_id_char);
}
bool is_sha256(std::string_view text) { return text.size() == 64 && all_of(text, is_lower_hex); }
bool is_address(std::string_view text) {
  return text.size() >= 3 && text.size() <= 18 && text.substr(0, 2) == "0x" &&
         all_of(text.substr(2), is_lower_hex);
}
bool is_time(std::string_view text) {
  constexpr std::string_view kPattern = "dddd-dd-ddTdd:dd:ddZ";
  if (text.size() != kPattern.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (kPattern[i] == 'd' ? !is_digit(text[i]) : text[i] != kPattern[i]) return false;
  }
  return true;
}

// Levenshtein distance of two short names.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t kept = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({kept, row[j - 1] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

std::string suggestion(std::string_view name, std::span<const ManifestField> fields) {
  if (name.size() > 64) return "";
  const char* best = nullptr;
  size_t least = 3;
  for (const ManifestField& field : fields) {
    const size_t distance = edit_distance(name, field.name);
    if (distance < least) {
      least = distance;
      best = field.name;
    }
  }
  return best == nullptr ? "" : text("; did you mean '%s'?", best);
}

std::string listed(std::span<const char* const> words) {
  return joined(std::vector<std::string>(words.begin(), words.end()));
}

const char* wanted(ShapeOf shape) {
  switch (shape) {
    case ShapeOf::UINT:
    case ShapeOf::POWER_OF_2:
      return "integer";
    case ShapeOf::NUMBER:
      return "number";
    case ShapeOf::BOOL:
      return "bool";
    case ShapeOf::DIM:
    case ShapeOf::AXIS:
      return "integer or string";
    case ShapeOf::LIST:
    case ShapeOf::TUPLE:
    case ShapeOf::COLUMNS:
      return "list";
    case ShapeOf::OBJECT:
    case ShapeOf::UNION:
      return "object";
    case ShapeOf::RANGE:
      return "list or {min, max, step}";
    default:
      return "string";
  }
}

constexpr ManifestType kRangeLimit{.shape = ShapeOf::UINT, .min = 1, .max = kMaxCount};
constexpr ManifestType kRangeStep{.shape = ShapeOf::UINT, .max = kMaxCount};  // D12 judges 0
constexpr ManifestField kRangeFields[] = {
    {"min", &kRangeLimit}, {"max", &kRangeLimit}, {"step", &kRangeStep}};
constexpr ManifestType kRangeObject{.shape = ShapeOf::OBJECT, .fields = kRangeFields};

class Checker {
 public:
  Checker(const JsonTape& tape, bool newer_minor, Findings* out)
      : tape_(tape), newer_minor_(newer_minor), out_(out) {}

  // `name` is what the message calls the value; the depth of the recursion is the tape's, <= 16.
  void value(uint32_t node, const ManifestType& type, std::string_view name) {
    const JsonType found = tape_.type(node);
    switch (type.shape) {
      case ShapeOf::UINT:
      case ShapeOf::POWER_OF_2:
        if (is(found, JsonType::NUMBER, node, type, name)) uint(node, type, name);
        return;
      case ShapeOf::NUMBER:
        is(found, JsonType::NUMBER, node, type, name);
        return;
      case ShapeOf::BOOL:
        is(found, JsonType::BOOL, node, type, name);
        return;
      case ShapeOf::DIM:
      case ShapeOf::AXIS:
        if (found == JsonType::NUMBER) return uint(node, type, name);
        [[fallthrough]];
      case ShapeOf::TEXT:
      case ShapeOf::ID:
      case ShapeOf::HEX64:
      case ShapeOf::ADDRESS:
      case ShapeOf::TIME:
      case ShapeOf::ENUM:
        if (is(found, JsonType::STRING, node, type, name)) string(node, type, name);
        return;
      case ShapeOf::RANGE:
        if (found == JsonType::OBJECT) return object(node, kRangeObject, name);
        [[fallthrough]];
      case ShapeOf::LIST:
        if (is(found, JsonType::ARRAY, node, type, name)) list(node, type, name);
        return;
      case ShapeOf::TUPLE:
        if (is(found, JsonType::ARRAY, node, type, name)) tuple(node, type, name);
        return;
      case ShapeOf::COLUMNS:
        if (is(found, JsonType::ARRAY, node, type, name)) columns(node, type, name);
        return;
      case ShapeOf::OBJECT:
        if (is(found, JsonType::OBJECT, node, type, name)) object(node, type, name);
        return;
      case ShapeOf::UNION:
        if (is(found, JsonType::OBJECT, node, type, name)) variant(node, type, name);
        return;
    }
  }

  void finish() {
    if (extension_bytes_ <= kMaxExtensionBytes) return;
    out_->reject("C11", {},
                 text("x- fields hold %s bytes, at most %s", grouped(extension_bytes_).c_str(),
                      grouped(kMaxExtensionBytes).c_str()));
  }

 private:
  void reject(const char* code, uint32_t node, const std::string& message,
              const std::string& expected = "", const std::string& found = "") {
    if (out_->full(code)) {
      out_->reject(code, {}, "");  // counted, not shown: no pointer to make
    } else {
      out_->reject(code, {.field = tape_.pointer(node)}, message, expected, found);
    }
  }

  bool is(JsonType found, JsonType type, uint32_t node, const ManifestType& schema,
          std::string_view name) {
    if (found == type) return true;
    if (found == JsonType::NUL) {
      reject("C12", node, text("%s: null is not allowed here", shown(name).c_str()));
    } else {
      reject("C10", node,
             text("%s: %s, wanted %s", shown(name).c_str(), json_type_name(found),
                  wanted(schema.shape)),
             json_quote(wanted(schema.shape)), json_quote(json_type_name(found)));
    }
    return false;
  }

  void uint(uint32_t node, const ManifestType& type, std::string_view name) {
    const std::string_view token = tape_.value(node);
    const std::optional<uint64_t> number = parse_uint(token);
    const std::string label = shown(name);
    if (!number) {
      const bool digits = all_of(token, is_digit);
      reject("C05", node,
             digits ? text("%s: %s is over 2^53 - 1", label.c_str(), shown(token).c_str())
                    : text("%s: %s is not an integer literal", label.c_str(), shown(token).c_str()),
             "", json_quote(token));
    } else if (*number < type.min || *number > type.max) {
      reject("C11", node,
             text("%s: %s, wanted %s to %s", label.c_str(), grouped(*number).c_str(),
                  grouped(type.min).c_str(), grouped(type.max).c_str()),
             "", std::to_string(*number));
    } else if (type.shape == ShapeOf::POWER_OF_2 && (*number & (*number - 1)) != 0) {
      reject("C11", node,
             text("%s: %s is not a power of two", label.c_str(), grouped(*number).c_str()), "",
             std::to_string(*number));
    }
  }

  void string(uint32_t node, const ManifestType& type, std::string_view name) {
    const std::string_view value = tape_.value(node);
    std::string problem;
    switch (type.shape) {
      case ShapeOf::TEXT:
        if (value.size() < type.min) {
          problem = "is empty";
        } else if (value.size() > type.max) {
          problem = text("has %s bytes, at most %s", grouped(value.size()).c_str(),
                         grouped(type.max).c_str());
        }
        break;
      case ShapeOf::ID:
        if (!is_id(value)) problem = "is not an id ([a-z][a-z0-9_]*, at most 64)";
        break;
      case ShapeOf::HEX64:
        if (!is_sha256(value)) {
          problem = text("(%zu characters) is not 64 lower-case hex digits", value.size());
        }
        break;
      case ShapeOf::ADDRESS:
        if (!is_address(value)) problem = "is not 0x and 1 to 16 lower-case hex digits";
        break;
      case ShapeOf::TIME:
        if (!is_time(value)) problem = "is not a UTC time like 2026-11-29T00:00:00Z";
        break;
      default: {  // ENUM, DIM, AXIS
        const bool known = std::any_of(type.words.begin(), type.words.end(),
                                       [value](const char* word) { return value == word; });
        if (!known && !(type.open && is_extension(value))) {
          problem = "is none of " + listed(type.words) + (type.open ? ", x-…" : "");
        }
      }
    }
    if (problem.empty()) return;
    reject("C11", node,
           text("%s: '%s' %s", shown(name).c_str(), shown(value).c_str(), problem.c_str()), "",
           json_quote(value.substr(0, 1024)));
  }

  bool count(uint32_t node, const ManifestType& type, std::string_view name) {
    const uint64_t items = tape_.count(node);
    if (items > type.max && type.max > 16) {
      reject("C04", node,
             text("%s: %s entries, at most %s", shown(name).c_str(), grouped(items).c_str(),
                  grouped(type.max).c_str()));
      return false;
    }
    if (items >= type.min && items <= type.max) return true;
    reject("C11", node,
           type.max == UINT64_MAX || items < type.min
               ? text("%s: %s entries, at least %s", shown(name).c_str(), grouped(items).c_str(),
                      grouped(type.min).c_str())
               : text("%s: %s entries, at most %s", shown(name).c_str(), grouped(items).c_str(),
                      grouped(type.max).c_str()));
    return items > type.min;
  }

  void list(uint32_t node, const ManifestType& type, std::string_view name) {
    if (!count(node, type, name)) return;
    for (uint32_t item = tape_.first(node); item != JsonTape::kNone; item = tape_.following(item)) {
      value(item, *type.element, name);
    }
  }

  void tuple(uint32_t node, const ManifestType& type, std::string_view name) {
    uint32_t item = tape_.first(node);
    for (const ManifestField& field : type.fields) {
      if (item == JsonTape::kNone) {
        reject("C09", node,
               text("%s: %u entries, %s is missing", shown(name).c_str(), tape_.count(node),
                    field.name));
        return;
      }
      value(item, *field.type, field.name);
      item = tape_.following(item);
    }
  }

  void columns(uint32_t node, const ManifestType& type, std::string_view name) {
    uint32_t item = tape_.first(node);
    for (const ManifestField& field : type.element->fields) {
      if (item == JsonTape::kNone || tape_.value(item) != field.name) {
        reject("C11", item == JsonTape::kNone ? node : item,
               text("%s: '%s' is missing at its place", shown(name).c_str(), field.name));
        return;
      }
      item = tape_.following(item);
    }
    for (; item != JsonTape::kNone; item = tape_.following(item)) {
      if (tape_.type(item) == JsonType::STRING && is_extension(tape_.value(item))) continue;
      reject("C11", item,
             text("%s: column '%s' is not x-…", shown(name).c_str(),
                  shown(tape_.value(item)).c_str()));
    }
  }

  void object(uint32_t node, const ManifestType& type, std::string_view name) {
    std::vector<bool> seen(type.fields.size(), false);
    for (uint32_t child = tape_.first(node); child != JsonTape::kNone;
         child = tape_.following(child)) {
      const std::string_view key = tape_.key(child);
      const auto field =
          std::find_if(type.fields.begin(), type.fields.end(),
                       [key](const ManifestField& candidate) { return key == candidate.name; });
      if (field == type.fields.end()) {
        unknown(child, key, type);
        continue;
      }
      seen[static_cast<size_t>(field - type.fields.begin())] = true;
      if (field->nullable && tape_.type(child) == JsonType::NUL) continue;
      value(child, *field->type, field->name);
    }
    for (size_t i = 0; i < seen.size(); ++i) {
      const ManifestField& field = type.fields[i];
      if (seen[i] || !field.required) continue;
      const std::string where = tape_.pointer(node);
      out_->reject("C09", {.field = where + "/" + field.name},
                   name.empty() ? text("%s is missing", field.name)
                                : text("%s: %s is missing", shown(name).c_str(), field.name));
    }
  }

  void unknown(uint32_t child, std::string_view key, const ManifestType& type) {
    if (is_extension(key)) {
      extension_bytes_ += tape_.source_bytes(child);
      return;
    }
    const bool full = out_->full("C08");
    std::string message;
    if (!full) {
      message =
          text("unknown field '%s'%s", shown(key).c_str(), suggestion(key, type.fields).c_str());
    }
    const std::string where = full ? "" : tape_.pointer(child);
    out_->add(newer_minor_ ? 'W' : 'R', "C08", {.field = where}, message, "", "");
  }

  void variant(uint32_t node, const ManifestType& type, std::string_view name) {
    const uint32_t kind = tape_.find(node, "kind");
    if (kind == JsonTape::kNone) {
      out_->reject("C09", {.field = tape_.pointer(node) + "/kind"},
                   text("%s: kind is missing", shown(name).c_str()));
      return;
    }
    std::vector<std::string> kinds;
    for (const ManifestVariant& option : type.variants) {
      if (tape_.type(kind) == JsonType::STRING && tape_.value(kind) == option.kind) {
        return object(node, *option.type, name);
      }
      kinds.emplace_back(option.kind);
    }
    constexpr ManifestType kKind{.shape = ShapeOf::TEXT};
    if (!is(tape_.type(kind), JsonType::STRING, kind, kKind, "kind")) return;
    reject(
        "C11", kind,
        text("kind: '%s' is none of %s", shown(tape_.value(kind)).c_str(), joined(kinds).c_str()),
        "", json_quote(tape_.value(kind).substr(0, 1024)));
  }

  const JsonTape& tape_;
  bool newer_minor_;
  Findings* out_;
  uint64_t extension_bytes_ = 0;
};

}  // namespace

std::optional<uint64_t> parse_uint(std::string_view token) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || end != token.data() + token.size() || value > kMaxManifestUint) {
    return std::nullopt;
  }
  return value;
}

bool check_schema(const JsonTape& tape, Findings* out) {
  if (tape.type(0) != JsonType::OBJECT) {
    out->reject("C10", {},
                text("the manifest is a %s, wanted object", json_type_name(tape.type(0))));
    return false;
  }
  const uint32_t version = tape.find(0, "manifest");
  const bool is_text = version != JsonTape::kNone && tape.type(version) == JsonType::STRING;
  if (!is_text || tape.value(version) != "manifest-1") {
    const std::string found = is_text ? shown(tape.value(version)) : "no manifest version";
    out->reject("C06", {.field = "/manifest"},
                text("package has %s, this calrt %s reads manifest-1", found.c_str(),
                     CALRT_PROJECT_VERSION),
                "\"manifest-1\"", is_text ? json_quote(tape.value(version).substr(0, 1024)) : "");
    return false;
  }
  const uint32_t minor = tape.find(0, "minor");
  const auto number = minor != JsonTape::kNone && tape.type(minor) == JsonType::NUMBER
                          ? parse_uint(tape.value(minor))
                          : std::nullopt;
  Checker checker(tape, number.value_or(0) > kManifestMinor, out);
  checker.value(0, manifest_schema(), "");
  checker.finish();

  // No optional feature exists yet, so whatever a package requires is unknown here.
  const uint32_t features = tape.find(0, "requires");
  if (features != JsonTape::kNone && tape.type(features) == JsonType::ARRAY) {
    for (uint32_t item = tape.first(features); item != JsonTape::kNone && !out->full("C07");
         item = tape.following(item)) {
      if (tape.type(item) != JsonType::STRING) continue;
      out->reject("C07", {.field = tape.pointer(item)},
                  text("the package requires '%s', which this calrt %s does not know",
                       shown(tape.value(item)).c_str(), CALRT_PROJECT_VERSION),
                  "", json_quote(tape.value(item).substr(0, 1024)));
    }
  }
  return true;
}

}  // namespace calrt
