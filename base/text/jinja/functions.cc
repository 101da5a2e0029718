// The built-in functions of a template: range, dict, namespace,
// raise_exception and strftime_now.

#include <algorithm>
#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/text/jinja/runtime.h"

namespace cadre::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

absl::StatusOr<Value> Range(const CallArguments& arguments) {
  const List& bounds = arguments.positional;
  if (bounds.empty() || bounds.size() > 3) {
    return TemplateError("range takes one to three integers");
  }
  for (const Value& bound : bounds) {
    if (!bound.is_integer()) {
      return TemplateError(
          absl::StrCat("range needs integers, not a ", bound.TypeName()));
    }
  }
  const int64_t begin = bounds.size() > 1 ? bounds[0].int_value() : 0;
  const int64_t end = bounds[bounds.size() > 1 ? 1 : 0].int_value();
  const int64_t step = bounds.size() > 2 ? bounds[2].int_value() : 1;
  if (step == 0) return TemplateError("range step must not be zero");
  List items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return TemplateError(absl::StrCat(
          "range too big; the sandbox blocks ranges over ", kMaxRange));
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::MakeList(std::move(items));
}

absl::StatusOr<Value> StrftimeNow(const CallArguments& arguments) {
  const Value* format = arguments.Get(0, "format");
  if (format == nullptr || !format->is_string()) {
    return TemplateError("strftime_now needs a format");
  }
  const std::tm now = absl::ToTM(absl::Now(), absl::LocalTimeZone());
  char buffer[256];
  const size_t size =
      std::strftime(buffer, sizeof(buffer), format->string().c_str(), &now);
  return Value::String(std::string(buffer, size));
}

}  // namespace

const std::vector<std::string>& FunctionNames() {
  static const auto* const kNames = new std::vector<std::string>{
      "range", "dict", "namespace", "raise_exception", "strftime_now"};
  return *kNames;
}

absl::StatusOr<Value> CallFunction(const std::string& name,
                                   const CallArguments& arguments) {
  if (name == "range") return Range(arguments);
  if (name == "strftime_now") return StrftimeNow(arguments);
  if (name == "raise_exception") {
    const Value* message = arguments.Get(0, "message");
    return TemplateError(message == nullptr ? "" : message->Str());
  }
  // dict(a=1) and namespace(a=1); one dict may come first.
  Dict entries;
  for (const Value& value : arguments.positional) {
    if (!value.is_dict()) {
      return TemplateError(
          absl::StrCat(name, " takes dicts and named values only"));
    }
    entries.insert(entries.end(), value.dict().begin(), value.dict().end());
  }
  for (const auto& [key, value] : arguments.named) {
    const auto same = std::find_if(
        entries.begin(), entries.end(),
        [&, &key = key](const auto& entry) { return entry.first == key; });
    if (same != entries.end()) {
      same->second = value;
    } else {
      entries.emplace_back(key, value);
    }
  }
  if (name == "dict") return Value::MakeDict(std::move(entries));
  auto space = std::make_shared<Namespace>();
  space->variables = std::move(entries);
  return Value::Of(std::move(space));
}

}  // namespace cadre::jinja
