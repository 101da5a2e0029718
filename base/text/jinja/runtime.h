#ifndef CADRE_BASE_TEXT_JINJA_RUNTIME_H_
#define CADRE_BASE_TEXT_JINJA_RUNTIME_H_

// What expressions work with while a template runs: scopes, callables, loops,
// and the built-in filters, tests, methods and operators. Not thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/jinja/ast.h"
#include "base/text/jinja/value.h"

namespace cadre::jinja {

// Variables of one level; the parent's are seen through it.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> variables;

  const Value* Find(absl::string_view name) const;  // here or further out
  void Set(const std::string& name, Value value);   // here
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> variables;
};

// The variable `loop`.
struct LoopState {
  std::shared_ptr<const List> items;
  int64_t index0 = 0;
  List last_changed;
  bool changed_called = false;
};

struct Callable {
  enum class Kind { kMacro, kFunction, kMethod };
  Kind kind = Kind::kFunction;
  std::string name;
  // kMacro. Weak: the scope itself holds the macro.
  const std::vector<Parameter>* parameters = nullptr;
  const std::vector<StmtPtr>* body = nullptr;
  std::weak_ptr<Scope> scope;
  // kMethod
  Value self;
};

struct CallArguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at that place or of that name; nullptr where not given.
  const Value* Get(size_t index, absl::string_view name) const;
};

// Text no operation may exceed.
inline constexpr int64_t kMaxStringBytes = int64_t{64} << 20;
absl::Status CheckStringSize(int64_t bytes);

// a.name as Jinja looks it up: methods, then dict keys; undefined if neither.
absl::StatusOr<Value> GetAttribute(const Value& value, const std::string& name);
// a[key]: items and dict keys, then methods.
absl::StatusOr<Value> GetItem(const Value& value, const Value& key);
absl::StatusOr<Value> GetSlice(const Value& value, const Value& begin,
                               const Value& end, const Value& step);

absl::StatusOr<Value> Unary(absl::string_view op, const Value& value);
absl::StatusOr<Value> Binary(absl::string_view op, const Value& left,
                             const Value& right);
absl::StatusOr<bool> CompareValues(absl::string_view op, const Value& left,
                                   const Value& right);

bool HasMethod(const Value& self, absl::string_view name);
absl::StatusOr<Value> CallMethod(const Value& self, const std::string& name,
                                 const CallArguments& arguments);
absl::StatusOr<Value> CallFunction(const std::string& name,
                                   const CallArguments& arguments);
// The built-in functions every template sees.
const std::vector<std::string>& FunctionNames();

// depth: filters such as map call others.
absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value,
                                  const CallArguments& arguments,
                                  int depth = 0);
absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value,
                               const CallArguments& arguments);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_RUNTIME_H_
