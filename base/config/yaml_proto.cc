#include "base/config/yaml_proto.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config/yaml_tree.h"

namespace cadre {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using yaml::Node;
using Kind = yaml::Node::Kind;

// "80GiB" -> bytes; plain digits are bytes.
std::optional<int64_t> ParseBytes(absl::string_view text) {
  static constexpr std::pair<const char*, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}, {"B", 0}};
  int shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (absl::EndsWith(text, unit)) {
      text.remove_suffix(absl::string_view(unit).size());
      shift = bits;
      break;
    }
  }
  int64_t value;
  if (!absl::SimpleAtoi(text, &value)) return std::nullopt;
  if (value < 0 || value > (std::numeric_limits<int64_t>::max() >> shift)) {
    return std::nullopt;
  }
  return value << shift;
}

class Filler {
 public:
  Filler(YamlMarks* marks, cadre::v1::Diagnostics* out)
      : marks_(marks), out_(out) {}

  void Error(const std::string& field, YamlMark mark, std::string message,
             std::string hint = "") {
    auto* item = out_->add_items();
    item->set_severity(cadre::v1::Diagnostic::SEVERITY_ERROR);
    item->set_field(field);
    item->set_line(mark.line);
    item->set_column(mark.column);
    item->set_message(std::move(message));
    item->set_hint(std::move(hint));
    out_->set_total(out_->total() + 1);
  }

  void FillMessage(const Node& node, const std::string& path,
                   Message* message) {
    if (node.kind != Kind::kMap) {
      Error(path, node.mark,
            path.empty() ? "the file must hold key: value pairs"
                         : absl::StrCat(path, " must hold key: value pairs"));
      return;
    }
    const Descriptor* descriptor = message->GetDescriptor();
    std::set<std::string> seen;
    for (const auto& [key, value] : node.entries) {
      if (key.kind != Kind::kScalar) {
        Error(path, key.mark, "a key must be a plain name");
        continue;
      }
      const std::string field_path =
          path.empty() ? key.scalar : absl::StrCat(path, ".", key.scalar);
      if (!seen.insert(key.scalar).second) {
        Error(field_path, key.mark,
              absl::StrCat("duplicate key \"", key.scalar, "\""),
              "keep one of the two");
        continue;
      }
      const FieldDescriptor* field = descriptor->FindFieldByName(key.scalar);
      if (field == nullptr) {
        Unknown(*descriptor, key, field_path);
        continue;
      }
      (*marks_)[field_path] = key.mark;
      FillField(value, *field, field_path, message);
    }
  }

 private:
  void Unknown(const Descriptor& descriptor, const Node& key,
               const std::string& path) {
    std::vector<std::string> names;
    for (int i = 0; i < descriptor.field_count(); ++i) {
      names.push_back(descriptor.field(i)->name());
    }
    const std::string near = NearestName(key.scalar, names);
    Error(path, key.mark, absl::StrCat("unknown key \"", key.scalar, "\""),
          near.empty()
              ? absl::StrCat("known here: ", absl::StrJoin(names, ", "))
              : absl::StrCat("did you mean \"", near, "\"?"));
  }

  void FillField(const Node& value, const FieldDescriptor& field,
                 const std::string& path, Message* message) {
    if (value.kind == Kind::kNull) {
      Error(path, value.mark, absl::StrCat(path, " has no value"),
            "write one, or remove the key to use the default");
    } else if (field.is_map()) {
      FillMap(value, field, path, message);
    } else if (field.is_repeated()) {
      FillList(value, field, path, message);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      FillMessage(value, path,
                  message->GetReflection()->MutableMessage(message, &field));
    } else if (field.has_optional_keyword() && value.kind == Kind::kScalar &&
               !value.quoted && value.scalar == "auto") {
      // Unset means auto.
    } else {
      SetScalar(value, field, path, message);
    }
  }

  void FillMap(const Node& value, const FieldDescriptor& field,
               const std::string& path, Message* message) {
    if (value.kind != Kind::kMap) {
      Error(path, value.mark,
            absl::StrCat(path, " must hold key: value pairs"));
      return;
    }
    std::set<std::string> seen;
    const Descriptor* entry = field.message_type();
    for (const auto& [key, item] : value.entries) {
      const std::string item_path = absl::StrCat(path, ".", key.scalar);
      if (!seen.insert(key.scalar).second) {
        Error(item_path, key.mark,
              absl::StrCat("duplicate key \"", key.scalar, "\""),
              "keep one of the two");
        continue;
      }
      (*marks_)[item_path] = key.mark;
      Message* added = message->GetReflection()->AddMessage(message, &field);
      added->GetReflection()->SetString(added, entry->map_key(), key.scalar);
      FillField(item, *entry->map_value(), item_path, added);
    }
  }

  void FillList(const Node& value, const FieldDescriptor& field,
                const std::string& path, Message* message) {
    if (value.kind != Kind::kList) {
      Error(path, value.mark, absl::StrCat(path, " must be a list"),
            value.kind == Kind::kScalar
                ? absl::StrCat("write [", value.scalar, "]")
                : "");
      return;
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      (*marks_)[item_path] = value.items[i].mark;
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        FillMessage(value.items[i], item_path,
                    message->GetReflection()->AddMessage(message, &field));
      } else {
        SetScalar(value.items[i], field, item_path, message);
      }
    }
  }

  void SetScalar(const Node& value, const FieldDescriptor& field,
                 const std::string& path, Message* message) {
    const Reflection* reflection = message->GetReflection();
    auto wrong = [&](absl::string_view expected) {
      Error(path, value.mark,
            value.kind == Kind::kScalar
                ? absl::StrCat(path, " must be ", expected, ", not \"",
                               value.scalar, "\"")
                : absl::StrCat(path, " must be ", expected));
    };
    if (value.kind != Kind::kScalar) return wrong("a single value");
    const bool list = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        list ? reflection->AddString(message, &field, value.scalar)
             : reflection->SetString(message, &field, value.scalar);
        return;
      case FieldDescriptor::CPPTYPE_BOOL: {
        if (value.quoted ||
            (value.scalar != "true" && value.scalar != "false")) {
          return wrong("true or false");
        }
        const bool v = value.scalar == "true";
        list ? reflection->AddBool(message, &field, v)
             : reflection->SetBool(message, &field, v);
        return;
      }
      case FieldDescriptor::CPPTYPE_INT32: {
        int32_t v;
        if (value.quoted || !absl::SimpleAtoi(value.scalar, &v)) {
          return wrong("a whole number");
        }
        list ? reflection->AddInt32(message, &field, v)
             : reflection->SetInt32(message, &field, v);
        return;
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        int64_t v;
        if (absl::EndsWith(field.name(), "_bytes")) {
          const std::optional<int64_t> bytes = ParseBytes(value.scalar);
          if (!bytes) return wrong("a size such as 80GiB");
          v = *bytes;
        } else if (value.quoted || !absl::SimpleAtoi(value.scalar, &v)) {
          return wrong("a whole number");
        }
        list ? reflection->AddInt64(message, &field, v)
             : reflection->SetInt64(message, &field, v);
        return;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double v;
        if (value.quoted || !absl::SimpleAtod(value.scalar, &v) ||
            !std::isfinite(v)) {
          return wrong("a number");
        }
        list ? reflection->AddDouble(message, &field, v)
             : reflection->SetDouble(message, &field, v);
        return;
      }
      default:
        return wrong(absl::StrCat("a ", field.cpp_type_name()));
    }
  }

  YamlMarks* marks_;
  cadre::v1::Diagnostics* out_;
};

}  // namespace

bool ParseYaml(absl::string_view yaml, Message* message, YamlMarks* marks,
               cadre::v1::Diagnostics* diagnostics) {
  const int before = diagnostics->items_size();
  Filler filler(marks, diagnostics);
  if (yaml.size() > kMaxYamlBytes) {
    filler.Error("", {1, 1},
                 absl::StrCat("the file has ", yaml.size(),
                              " bytes, more than ", kMaxYamlBytes));
    return false;
  }
  std::vector<yaml::SyntaxError> errors;
  const Node root = yaml::Read(yaml, &errors);
  for (const yaml::SyntaxError& e : errors) filler.Error("", e.mark, e.message);
  if (errors.empty() && root.kind == Kind::kNull) {
    filler.Error("", {1, 1}, "the file is empty");
  } else if (root.kind != Kind::kNull) {
    filler.FillMessage(root, "", message);
  }
  return diagnostics->items_size() == before;
}

void PlaceDiagnostics(const YamlMarks& marks, int max_items,
                      cadre::v1::Diagnostics* diagnostics) {
  for (auto& item : *diagnostics->mutable_items()) {
    if (item.line() != 0 || !item.file().empty()) continue;
    std::string path = item.field();
    while (!path.empty()) {
      if (auto it = marks.find(path); it != marks.end()) {
        item.set_line(it->second.line);
        item.set_column(it->second.column);
        break;
      }
      const size_t cut = path.find_last_of(".[");
      path.resize(cut == std::string::npos ? 0 : cut);
    }
  }
  auto* items = diagnostics->mutable_items();
  std::stable_sort(items->begin(), items->end(),
                   [](const auto& a, const auto& b) {
                     return std::make_tuple(a.file(), a.line(), a.column()) <
                            std::make_tuple(b.file(), b.line(), b.column());
                   });
  diagnostics->set_total(
      std::max<int64_t>(diagnostics->total(), items->size()));
  if (items->size() > max_items) {
    items->DeleteSubrange(max_items, items->size() - max_items);
  }
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int up = row[j];
      row[j] =
          std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace cadre
