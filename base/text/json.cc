#include "base/text/json.h"

namespace cadre {

Json Json::Bool(bool value) {
  Json json;
  json.type_ = Type::kBool;
  json.int_ = value;
  return json;
}
Json Json::Int(int64_t value) {
  Json json;
  json.type_ = Type::kInt;
  json.int_ = value;
  return json;
}
Json Json::Float(double value) {
  Json json;
  json.type_ = Type::kFloat;
  json.float_ = value;
  return json;
}
Json Json::String(std::string value) {
  Json json;
  json.type_ = Type::kString;
  json.string_ = std::move(value);
  return json;
}
Json Json::Array(std::vector<Json> items) {
  Json json;
  json.type_ = Type::kArray;
  json.items_ = std::move(items);
  return json;
}
Json Json::Object(std::vector<Member> members) {
  Json json;
  json.type_ = Type::kObject;
  json.members_ = std::move(members);
  return json;
}

absl::string_view Json::TypeName() const {
  switch (type_) {
    case Type::kNull:
      return "null";
    case Type::kBool:
      return "a boolean";
    case Type::kInt:
    case Type::kFloat:
      return "a number";
    case Type::kString:
      return "a string";
    case Type::kArray:
      return "an array";
    case Type::kObject:
      return "an object";
  }
  return "";
}

double Json::number_value() const {
  if (is_int()) return static_cast<double>(int_);
  return is_float() ? float_ : 0.0;
}

const Json* Json::Find(absl::string_view key) const {
  for (const Member& member : members_) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

}  // namespace cadre
