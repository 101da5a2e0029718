#ifndef CADRE_BASE_TEXT_JINJA_COLLECTION_FILTERS_H_
#define CADRE_BASE_TEXT_JINJA_COLLECTION_FILTERS_H_

// Filters over lists and mappings, for the table in filters.cc. Pure functions;
// arguments by position and name as Jinja documents them.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/jinja/runtime.h"

namespace cadre::jinja {

// Whether an optional argument is given and true.
bool Flag(const CallArguments& arguments, size_t index, absl::string_view name);

absl::StatusOr<Value> Sort(const Value& value, const CallArguments& arguments);
absl::StatusOr<Value> DictSort(const Value& value,
                               const CallArguments& arguments);
absl::StatusOr<Value> Extreme(const Value& value,
                              const CallArguments& arguments, bool largest);
absl::StatusOr<Value> Unique(const Value& value,
                             const CallArguments& arguments);
absl::StatusOr<Value> Sum(const Value& value, const CallArguments& arguments);
// join the filter: any values, through str; join the method: texts only.
absl::StatusOr<Value> Join(const Value& items_value,
                           const std::string& separator, const Value* attribute,
                           bool texts_only);
// map: an attribute of each item, or another filter on it.
absl::StatusOr<Value> Map(const Value& value, const CallArguments& arguments,
                          int depth);
// select, reject, selectattr, rejectattr.
absl::StatusOr<Value> Select(const Value& value, CallArguments arguments,
                             bool keep, bool by_attribute);
absl::StatusOr<Value> GroupBy(const Value& value,
                              const CallArguments& arguments);
absl::StatusOr<Value> Batch(const Value& value, const CallArguments& arguments);
absl::StatusOr<Value> FirstOrLast(const Value& value, bool first);
absl::StatusOr<Value> Reverse(const Value& value);
absl::StatusOr<Value> Items(const Value& value);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_COLLECTION_FILTERS_H_
