// How values compare, what they hold when walked, and their JSON.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/value.h"
#include "base/text/utf8.h"

namespace cadre::jinja {
namespace {

constexpr int kMaxJsonDepth = 100;

}  // namespace

bool Value::Equals(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_integer() && other.is_integer()) return int_ == other.int_;
    return number() == other.number();
  }
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kString:
      return *string_ == *other.string_;
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(list_->begin(), list_->end(), other.list_->begin(),
                        other.list_->end(), [](const Value& a, const Value& b) {
                          return a.Equals(b);
                        });
    case Kind::kDict:
      return dict_->size() == other.dict_->size() &&
             std::all_of(dict_->begin(), dict_->end(), [&](const auto& entry) {
               const Value* there = other.Find(entry.first);
               return there != nullptr && entry.second.Equals(*there);
             });
    case Kind::kNamespace:
      return namespace_ == other.namespace_;
    case Kind::kLoop:
      return loop_ == other.loop_;
    case Kind::kCallable:
      return callable_ == other.callable_;
    default:
      return true;  // None, or two undefined ones
  }
}

absl::StatusOr<int> Value::Compare(const Value& other) const {
  const auto order = [](const auto& a, const auto& b) {
    return a < b ? -1 : (b < a ? 1 : 0);
  };
  if (is_integer() && other.is_integer()) return order(int_, other.int_);
  if (is_number() && other.is_number()) {
    return order(number(), other.number());
  }
  // Byte order of UTF-8 is code point order.
  if (is_string() && other.is_string()) return order(*string_, *other.string_);
  if (is_sequence() && kind_ == other.kind_) {
    const size_t n = std::min(list_->size(), other.list_->size());
    for (size_t i = 0; i < n; ++i) {
      if ((*list_)[i].Equals((*other.list_)[i])) continue;
      return (*list_)[i].Compare((*other.list_)[i]);
    }
    return order(list_->size(), other.list_->size());
  }
  for (const Value* value : {this, &other}) {
    if (value->is_undefined()) {
      return TemplateError(
          absl::StrCat("`", value->string(), "` is undefined"));
    }
  }
  return TemplateError(absl::StrCat("'<' not supported between instances of '",
                                    TypeName(), "' and '", other.TypeName(),
                                    "'"));
}

absl::StatusOr<List> Value::Iterate() const {
  switch (kind_) {
    case Kind::kUndefined:
      return List();
    case Kind::kList:
    case Kind::kTuple:
      return *list_;
    case Kind::kDict: {
      List keys;
      for (const auto& entry : *dict_) keys.push_back(String(entry.first));
      return keys;
    }
    case Kind::kString: {
      List characters;
      const std::vector<int64_t> offsets = CharacterOffsets(*string_);
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        characters.push_back(
            String(string_->substr(offsets[i], offsets[i + 1] - offsets[i])));
      }
      return characters;
    }
    default:
      return TemplateError(
          absl::StrCat("'", TypeName(), "' object is not iterable"));
  }
}

absl::StatusOr<int64_t> Value::Length() const {
  switch (kind_) {
    case Kind::kUndefined:
      return 0;
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(list_->size());
    case Kind::kDict:
      return static_cast<int64_t>(dict_->size());
    case Kind::kString:
      return static_cast<int64_t>(
          std::count_if(string_->begin(), string_->end(), [](char c) {
            return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
          }));
    default:
      return TemplateError(
          absl::StrCat("object of type '", TypeName(), "' has no len()"));
  }
}

absl::StatusOr<Json> Value::ToJson(int depth) const {
  if (depth > kMaxJsonDepth) return TemplateError("tojson: nested too deep");
  switch (kind_) {
    case Kind::kNone:
      return Json();
    case Kind::kBool:
      return Json::Bool(int_ != 0);
    case Kind::kInt:
      return Json::Int(int_);
    case Kind::kFloat:
      return Json::Float(float_);
    case Kind::kString:
      return Json::String(*string_);
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Json> items;
      for (const Value& item : *list_) {
        CADRE_ASSIGN_OR_RETURN(Json json, item.ToJson(depth + 1));
        items.push_back(std::move(json));
      }
      return Json::Array(std::move(items));
    }
    case Kind::kDict: {
      std::vector<Json::Member> members;
      for (const auto& [key, value] : *dict_) {
        CADRE_ASSIGN_OR_RETURN(Json json, value.ToJson(depth + 1));
        members.push_back({key, std::move(json)});
      }
      return Json::Object(std::move(members));
    }
    default:
      return TemplateError(absl::StrCat("Object of type ", TypeName(),
                                        " is not JSON serializable"));
  }
}

}  // namespace cadre::jinja
