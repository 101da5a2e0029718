// Methods of strings, dicts, lists and loops. Only those that leave their
// object alone, as in Jinja's immutable sandbox.

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/jinja/runtime.h"
#include "base/text/jinja/string_methods.h"

namespace cadre::jinja {
namespace {

constexpr absl::string_view kDictMethods[] = {"items", "keys", "values", "get",
                                              "copy"};
constexpr absl::string_view kListMethods[] = {"index", "count"};
constexpr absl::string_view kLoopMethods[] = {"cycle", "changed"};

template <size_t n>
bool Contains(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::StatusOr<Value> DictMethod(const Value& self, const std::string& name,
                                 const CallArguments& arguments) {
  if (name == "copy") return self;
  if (name == "get") {
    const Value* key = arguments.Get(0, "key");
    if (key == nullptr) return TemplateError("get needs a key");
    const Value* fallback = arguments.Get(1, "default");
    const Value* found = key->is_string() ? self.Find(key->string()) : nullptr;
    if (found != nullptr) return *found;
    return fallback == nullptr ? Value() : *fallback;
  }
  List items;
  for (const auto& [key, value] : self.dict()) {
    if (name == "keys") {
      items.push_back(Value::String(key));
    } else if (name == "values") {
      items.push_back(value);
    } else {
      items.push_back(Value::MakeTuple({Value::String(key), value}));
    }
  }
  return Value::MakeList(std::move(items));
}

absl::StatusOr<Value> ListMethod(const Value& self, const std::string& name,
                                 const CallArguments& arguments) {
  const Value* item = arguments.Get(0, "value");
  if (item == nullptr)
    return TemplateError(absl::StrCat(name, " needs a value"));
  int64_t count = 0;
  for (size_t i = 0; i < self.list().size(); ++i) {
    if (!self.list()[i].Equals(*item)) continue;
    if (name == "index") return Value::Int(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") return TemplateError("value is not in list");
  return Value::Int(count);
}

absl::StatusOr<Value> LoopMethod(LoopState& loop, const std::string& name,
                                 const CallArguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) {
      return TemplateError("no items for cycling given");
    }
    return arguments.positional[loop.index0 % arguments.positional.size()];
  }
  for (const Value& value : arguments.positional) {
    // It could hold this loop, which would then never be freed.
    if (value.HoldsNamespace()) {
      return TemplateError("changed takes plain values only");
    }
  }
  const bool same =
      loop.changed_called && Value::MakeList(loop.last_changed)
                                 .Equals(Value::MakeList(arguments.positional));
  loop.changed_called = true;
  loop.last_changed = arguments.positional;
  return Value::Bool(!same);
}

}  // namespace

bool HasMethod(const Value& self, absl::string_view name) {
  switch (self.kind()) {
    case Value::Kind::kString:
      return HasStringMethod(name);
    case Value::Kind::kDict:
      return Contains(kDictMethods, name);
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      return Contains(kListMethods, name);
    case Value::Kind::kLoop:
      return Contains(kLoopMethods, name);
    default:
      return false;
  }
}

absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name,
                                 const CallArguments& arguments) {
  switch (self.kind()) {
    case Value::Kind::kString:
      return StringMethod(self.string(), name, arguments);
    case Value::Kind::kDict:
      return DictMethod(self, name, arguments);
    case Value::Kind::kLoop:
      return LoopMethod(*self.loop(), name, arguments);
    default:
      return ListMethod(self, name, arguments);
  }
}

}  // namespace cadre::jinja
