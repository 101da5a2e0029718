#include "base/text/jinja/collection_filters.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/jinja/text_case.h"

namespace cadre::jinja {
namespace {

// "a.b.0" of a value, as map(attribute=...) and its siblings look it up.
absl::StatusOr<Value> Lookup(const Value& value, const std::string& path) {
  Value current = value;
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  for (const std::string& part : parts) {
    int64_t index = 0;
    if (absl::SimpleAtoi(part, &index)) {
      CADRE_ASSIGN_OR_RETURN(current, GetItem(current, Value::Int(index)));
    } else {
      CADRE_ASSIGN_OR_RETURN(current, GetItem(current, Value::String(part)));
    }
  }
  return current;
}

// The key that sort, unique, min, max and dictsort compare by.
absl::StatusOr<Value> SortKey(const Value& value, const Value* attribute,
                              bool case_sensitive) {
  Value key = value;
  if (attribute != nullptr && !attribute->is_none()) {
    CADRE_ASSIGN_OR_RETURN(key, Lookup(value, attribute->Str()));
  }
  if (!case_sensitive && key.is_string()) {
    return Value::String(ToLower(key.string()));
  }
  return key;
}

absl::Status StableSort(std::vector<std::pair<Value, Value>>* keyed,
                        bool reverse) {
  absl::Status status;
  std::stable_sort(
      keyed->begin(), keyed->end(), [&](const auto& a, const auto& b) {
        // After a failure any consistent order will do.
        if (!status.ok()) return false;
        const absl::StatusOr<int> order =
            reverse ? b.first.Compare(a.first) : a.first.Compare(b.first);
        if (!order.ok()) status = order.status();
        return order.ok() && *order < 0;
      });
  return status;
}

}  // namespace

bool Flag(const CallArguments& arguments, size_t index,
          absl::string_view name) {
  const Value* value = arguments.Get(index, name);
  return value != nullptr && value->Truth();
}

absl::StatusOr<Value> Sort(const Value& value, const CallArguments& arguments) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  const Value* attribute = arguments.Get(2, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items) {
    CADRE_ASSIGN_OR_RETURN(
        Value key,
        SortKey(item, attribute, Flag(arguments, 1, "case_sensitive")));
    keyed.emplace_back(std::move(key), item);
  }
  CADRE_RETURN_IF_ERROR(StableSort(&keyed, Flag(arguments, 0, "reverse")));
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::MakeList(std::move(sorted));
}

absl::StatusOr<Value> DictSort(const Value& value,
                               const CallArguments& arguments) {
  if (!value.is_dict()) return TemplateError("dictsort needs a mapping");
  const Value* by = arguments.Get(1, "by");
  const bool by_value = by != nullptr && by->Str() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [name, item] : value.dict()) {
    const Value pair = Value::MakeTuple({Value::String(name), item});
    CADRE_ASSIGN_OR_RETURN(Value key,
                           SortKey(pair.list()[by_value ? 1 : 0], nullptr,
                                   Flag(arguments, 0, "case_sensitive")));
    keyed.emplace_back(std::move(key), pair);
  }
  CADRE_RETURN_IF_ERROR(StableSort(&keyed, Flag(arguments, 2, "reverse")));
  List sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return Value::MakeList(std::move(sorted));
}

absl::StatusOr<Value> Extreme(const Value& value,
                              const CallArguments& arguments, bool largest) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  if (items.empty()) {
    return Value::Undefined("No aggregated item, sequence was empty.");
  }
  const Value* attribute = arguments.Get(1, "attribute");
  const bool sensitive = Flag(arguments, 0, "case_sensitive");
  size_t best = 0;
  CADRE_ASSIGN_OR_RETURN(Value best_key,
                         SortKey(items[0], attribute, sensitive));
  for (size_t i = 1; i < items.size(); ++i) {
    CADRE_ASSIGN_OR_RETURN(Value key, SortKey(items[i], attribute, sensitive));
    CADRE_ASSIGN_OR_RETURN(const int order, key.Compare(best_key));
    if (largest ? order > 0 : order < 0) {
      best = i;
      best_key = std::move(key);
    }
  }
  return items[best];
}

absl::StatusOr<Value> Unique(const Value& value,
                             const CallArguments& arguments) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  const Value* attribute = arguments.Get(1, "attribute");
  List keys, kept;
  for (const Value& item : items) {
    CADRE_ASSIGN_OR_RETURN(
        Value key,
        SortKey(item, attribute, Flag(arguments, 0, "case_sensitive")));
    const bool seen =
        std::any_of(keys.begin(), keys.end(),
                    [&](const Value& other) { return other.Equals(key); });
    if (seen) continue;
    // Quadratic, so not for long lists.
    if (keys.size() > 10'000) {
      return absl::ResourceExhaustedError("unique: list too long");
    }
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::MakeList(std::move(kept));
}

absl::StatusOr<Value> Sum(const Value& value, const CallArguments& arguments) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  const Value* attribute = arguments.Get(0, "attribute");
  const Value* start = arguments.Get(1, "start");
  Value total = start == nullptr ? Value::Int(0) : *start;
  for (const Value& item : items) {
    Value term = item;
    if (attribute != nullptr && !attribute->is_none()) {
      CADRE_ASSIGN_OR_RETURN(term, Lookup(item, attribute->Str()));
    }
    CADRE_ASSIGN_OR_RETURN(total, Binary("+", total, term));
    if (total.weight() > kMaxStringBytes / 16) {
      return absl::ResourceExhaustedError("sum: result too large");
    }
  }
  return total;
}

absl::StatusOr<Value> Join(const Value& items_value,
                           const std::string& separator, const Value* attribute,
                           bool texts_only) {
  CADRE_ASSIGN_OR_RETURN(const List items, items_value.Iterate());
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      CADRE_ASSIGN_OR_RETURN(item, Lookup(item, attribute->Str()));
    }
    if (texts_only && !item.is_string()) {
      return TemplateError(absl::StrCat("sequence item ", i,
                                        ": expected str instance, ",
                                        item.TypeName(), " found"));
    }
    if (i > 0) out += separator;
    out += item.Str();
    CADRE_RETURN_IF_ERROR(CheckStringSize(static_cast<int64_t>(out.size())));
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Map(const Value& value, const CallArguments& arguments,
                          int depth) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  const Value* attribute =
      arguments.Get(arguments.positional.size(), "attribute");
  List out;
  if (attribute != nullptr) {
    const Value* fallback =
        arguments.Get(arguments.positional.size(), "default");
    for (const Value& item : items) {
      CADRE_ASSIGN_OR_RETURN(Value found, Lookup(item, attribute->Str()));
      if (found.is_undefined() && fallback != nullptr) found = *fallback;
      out.push_back(std::move(found));
    }
    return Value::MakeList(std::move(out));
  }
  if (arguments.positional.empty()) {
    return TemplateError("map requires a filter argument");
  }
  CallArguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : items) {
    CADRE_ASSIGN_OR_RETURN(
        Value mapped,
        ApplyFilter(arguments.positional[0].Str(), item, rest, depth + 1));
    out.push_back(std::move(mapped));
  }
  return Value::MakeList(std::move(out));
}

absl::StatusOr<Value> Select(const Value& value, CallArguments arguments,
                             bool keep, bool by_attribute) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  List& positional = arguments.positional;
  std::string attribute;
  if (by_attribute) {
    if (positional.empty()) return TemplateError("missing attribute name");
    attribute = positional[0].Str();
    positional.erase(positional.begin());
  }
  std::optional<std::string> test;
  if (!positional.empty()) {
    test = positional[0].Str();
    positional.erase(positional.begin());
  }
  List out;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      CADRE_ASSIGN_OR_RETURN(subject, Lookup(item, attribute));
    }
    bool passes = subject.Truth();
    if (test.has_value()) {
      CADRE_ASSIGN_OR_RETURN(passes, ApplyTest(*test, subject, arguments));
    }
    if (passes == keep) out.push_back(item);
  }
  return Value::MakeList(std::move(out));
}

absl::StatusOr<Value> GroupBy(const Value& value,
                              const CallArguments& arguments) {
  const Value* attribute = arguments.Get(0, "attribute");
  if (attribute == nullptr) return TemplateError("groupby needs an attribute");
  CallArguments by;
  by.named = {{"attribute", *attribute}};
  CADRE_ASSIGN_OR_RETURN(const Value sorted, Sort(value, by));
  List groups, members;
  Value key;
  const auto close = [&] {
    if (members.empty()) return;
    groups.push_back(
        Value::MakeTuple({key, Value::MakeList(std::move(members))}));
    members.clear();
  };
  for (const Value& item : sorted.list()) {
    CADRE_ASSIGN_OR_RETURN(Value its_key, Lookup(item, attribute->Str()));
    if (!members.empty() && !its_key.Equals(key)) close();
    key = std::move(its_key);
    members.push_back(item);
  }
  close();
  return Value::MakeList(std::move(groups));
}

absl::StatusOr<Value> Batch(const Value& value,
                            const CallArguments& arguments) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  const Value* size = arguments.Get(0, "linecount");
  if (size == nullptr || !size->is_integer() || size->int_value() < 1) {
    return TemplateError("batch needs a positive count");
  }
  List rows, row;
  for (const Value& item : items) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size->int_value()) {
      rows.push_back(Value::MakeList(std::move(row)));
      row.clear();
    }
  }
  if (!row.empty()) rows.push_back(Value::MakeList(std::move(row)));
  return Value::MakeList(std::move(rows));
}

absl::StatusOr<Value> FirstOrLast(const Value& value, bool first) {
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  if (items.empty()) {
    return Value::Undefined(first ? "No first item, sequence was empty."
                                  : "No last item, sequence was empty.");
  }
  return first ? items.front() : items.back();
}

absl::StatusOr<Value> Reverse(const Value& value) {
  CADRE_ASSIGN_OR_RETURN(List items, value.Iterate());
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return Value::MakeList(std::move(items));
  return Join(Value::MakeList(std::move(items)), "", nullptr, true);
}

absl::StatusOr<Value> Items(const Value& value) {
  if (value.is_undefined()) return Value::MakeList({});
  if (!value.is_dict()) {
    return TemplateError("Can only get item pairs from a mapping.");
  }
  return CallMethod(value, "items", {});
}

}  // namespace cadre::jinja
