// SPDX-License-Identifier: Apache-2.0
// Writes docs/manifest-1.schema.json from the table that checks manifests, or with a path compares
// the file with it. To update: manifest_schema_doc > docs/manifest-1.schema.json
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "calrt/findings.h"
#include "calrt/manifest_schema.h"

using namespace calrt;

namespace {

class SchemaWriter {
 public:
  std::string write() {
    out_ = "{\n";
    depth_ = 1;
    member("$schema", "\"https://json-schema.org/draft/2020-12/schema\"");
    member("$id", "\"urn:calrt:manifest-1\"");
    member("title", "\"calrt package manifest, manifest-1\"");
    member("description",
           "\"What the table of the validator checks by itself (C05, C08-C12). References, layouts "
           "and geometry are checked by calrt. Integers are written without point or exponent.\"");
    key("$defs");
    open('{');
    key("range");
    range_object();
    close('}');
    next();
    body(manifest_schema());
    out_ += "\n}\n";
    return out_;
  }

 private:
  void indent() { out_.append(2 * depth_, ' '); }
  void next() { out_ += ",\n"; }
  void key(const std::string& name) {
    indent();
    out_ += json_quote(name) + ": ";
  }
  void member(const std::string& name, const std::string& value) {
    key(name);
    out_ += value;
    next();
  }
  void open(char bracket) {
    out_ += bracket;
    out_ += '\n';
    ++depth_;
  }
  void close(char bracket) {
    --depth_;
    out_ += '\n';
    indent();
    out_ += bracket;
  }

  void schema(const ManifestType& type) {
    open('{');
    body(type);
    close('}');
  }

  void range_object() {
    open('{');
    member("type", "\"object\"");
    key("properties");
    const std::string limit =
        "{\"type\": \"integer\", \"minimum\": 1, \"maximum\": " + std::to_string(kMaxCount) + "}";
    out_ += "{\"min\": " + limit + ", \"max\": " + limit + ", \"step\": " + limit + "}";
    next();
    member("required", "[\"min\", \"max\", \"step\"]");
    member("patternProperties", "{\"^x-.\": true}");
    key("additionalProperties");
    out_ += "false";
    close('}');
  }

  std::string words(const ManifestType& type) {
    std::string list = "[";
    for (const char* word : type.words) {
      if (list.size() > 1) list += ", ";
      list += json_quote(word);
    }
    return list + "]";
  }

  std::string integer(const ManifestType& type) {
    return "{\"type\": \"integer\", \"minimum\": " + std::to_string(type.min) +
           ", \"maximum\": " + std::to_string(type.max) + "}";
  }

  void pattern(const char* regex) {
    member("type", "\"string\"");
    key("pattern");
    out_ += json_quote(regex);
  }

  void body(const ManifestType& type) {
    switch (type.shape) {
      case ShapeOf::UINT:
        member("type", "\"integer\"");
        member("minimum", std::to_string(type.min));
        key("maximum");
        out_ += std::to_string(type.max);
        break;
      case ShapeOf::POWER_OF_2: {
        std::string list = "[";
        for (uint64_t value = 1; value <= type.max; value *= 2) {
          if (value < type.min) continue;
          if (list.size() > 1) list += ", ";
          list += std::to_string(value);
        }
        key("enum");
        out_ += list + "]";
        break;
      }
      case ShapeOf::NUMBER:
        key("type");
        out_ += "\"number\"";
        break;
      case ShapeOf::BOOL:
        key("type");
        out_ += "\"boolean\"";
        break;
      case ShapeOf::TEXT:
        member("type", "\"string\"");
        member("minLength", std::to_string(type.min));
        key("maxLength");
        out_ += std::to_string(type.max);
        break;
      case ShapeOf::ID:
        pattern("^[a-z][a-z0-9_]{0,63}$");
        break;
      case ShapeOf::HEX64:
        pattern("^[0-9a-f]{64}$");
        break;
      case ShapeOf::ADDRESS:
        pattern("^0x[0-9a-f]{1,16}$");
        break;
      case ShapeOf::TIME:
        pattern("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$");
        break;
      case ShapeOf::ENUM:
        if (type.open) {
          key("anyOf");
          out_ += "[{\"enum\": " + words(type) + "}, {\"pattern\": \"^x-.\"}]";
        } else {
          key("enum");
          out_ += words(type);
        }
        break;
      case ShapeOf::DIM:
      case ShapeOf::AXIS:
        key("anyOf");
        out_ += "[" + integer(type) + ", {\"enum\": " + words(type) + "}]";
        break;
      case ShapeOf::LIST:
        list(type);
        break;
      case ShapeOf::TUPLE:
        tuple(type);
        break;
      case ShapeOf::COLUMNS:
        columns(type);
        break;
      case ShapeOf::OBJECT:
        object(type, nullptr);
        break;
      case ShapeOf::RANGE:
        key("anyOf");
        open('[');
        indent();
        out_ += "{\"$ref\": \"#/$defs/range\"},\n";
        indent();
        open('{');
        list(type);
        close('}');
        close(']');
        break;
      case ShapeOf::UNION:
        key("oneOf");
        open('[');
        for (const ManifestVariant& variant : type.variants) {
          if (&variant != type.variants.data()) next();
          indent();
          open('{');
          object(*variant.type, variant.kind);
          close('}');
        }
        close(']');
        break;
    }
  }

  void list(const ManifestType& type) {
    member("type", "\"array\"");
    member("minItems", std::to_string(type.min));
    member("maxItems", std::to_string(type.max));
    key("items");
    schema(*type.element);
  }

  void tuple(const ManifestType& type) {
    member("type", "\"array\"");
    member("minItems", std::to_string(type.fields.size()));
    key("prefixItems");
    open('[');
    for (const ManifestField& field : type.fields) {
      if (&field != type.fields.data()) next();
      indent();
      open('{');
      member("title", json_quote(field.name));
      body(*field.type);
      close('}');
    }
    close(']');
  }

  void columns(const ManifestType& type) {
    member("type", "\"array\"");
    member("minItems", std::to_string(type.min));
    member("maxItems", std::to_string(type.max));
    key("prefixItems");
    open('[');
    for (const ManifestField& field : type.element->fields) {
      if (&field != type.element->fields.data()) next();
      indent();
      out_ += "{\"const\": " + json_quote(field.name) + "}";
    }
    close(']');
    next();
    key("items");
    out_ += "{\"pattern\": \"^x-.\"}";
  }

  // `kind` replaces the value of the field of that name.
  void object(const ManifestType& type, const char* kind) {
    member("type", "\"object\"");
    key("properties");
    open('{');
    std::string required;
    for (const ManifestField& field : type.fields) {
      if (&field != type.fields.data()) next();
      key(field.name);
      if (kind != nullptr && std::string("kind") == field.name) {
        out_ += "{\"const\": " + json_quote(kind) + "}";
      } else if (std::string("manifest") == field.name) {
        out_ += "{\"const\": \"manifest-1\"}";
      } else if (field.nullable) {
        open('{');
        key("anyOf");
        open('[');
        indent();
        out_ += "{\"type\": \"null\"},\n";
        indent();
        schema(*field.type);
        close(']');
        close('}');
      } else {
        schema(*field.type);
      }
      if (field.required) {
        if (!required.empty()) required += ", ";
        required += json_quote(field.name);
      }
    }
    close('}');
    next();
    member("required", "[" + required + "]");
    member("patternProperties", "{\"^x-.\": true}");
    key("additionalProperties");
    out_ += "false";
  }

  std::string out_;
  size_t depth_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = SchemaWriter().write();
  if (argc < 2) {
    std::fputs(wanted.c_str(), stdout);
    return 0;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string found{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (found == wanted) return 0;
  std::fprintf(stderr, "%s is not what the table gives: run manifest_schema_doc > %s\n", argv[1],
               argv[1]);
  return 1;
}
