// Expressions: the values that tags compute.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/evaluator.h"
#include "base/text/jinja/evaluator_guards.h"

namespace cadre::jinja {
namespace {

constexpr int kMaxValueDepth = 100;
constexpr int64_t kMaxValueWeight = 10'000'000;

}  // namespace

absl::StatusOr<Value> Evaluator::Eval(const Expr& expr) {
  const Nesting nesting(this);
  CADRE_RETURN_IF_ERROR(nesting.status());
  CADRE_RETURN_IF_ERROR(Charge(1));
  absl::StatusOr<Value> value = EvalUncharged(expr);
  if (!value.ok()) return At(expr.line, value.status());
  // New values cost what they weigh; looking one up is free.
  if (expr.kind != Expr::Kind::kName && expr.kind != Expr::Kind::kConstant &&
      expr.kind != Expr::Kind::kAttribute && expr.kind != Expr::Kind::kItem) {
    CADRE_RETURN_IF_ERROR(Charge(value->weight()));
    if (value->depth() > kMaxValueDepth || value->weight() > kMaxValueWeight) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "template line ", expr.line, ": a value grows too large"));
    }
  }
  return value;
}

absl::StatusOr<Value> Evaluator::EvalUncharged(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.constant;
    case Expr::Kind::kName:
      return EvalName(expr.text);
    case Expr::Kind::kList: {
      CADRE_ASSIGN_OR_RETURN(List items, EvalList(expr.children));
      return Value::MakeList(std::move(items));
    }
    case Expr::Kind::kTuple: {
      CADRE_ASSIGN_OR_RETURN(List items, EvalList(expr.children));
      return Value::MakeTuple(std::move(items));
    }
    case Expr::Kind::kDict:
      return EvalDict(expr);
    case Expr::Kind::kAttribute: {
      CADRE_ASSIGN_OR_RETURN(const Value object, Eval(*expr.children[0]));
      return GetAttribute(object, expr.text);
    }
    case Expr::Kind::kItem: {
      CADRE_ASSIGN_OR_RETURN(const Value object, Eval(*expr.children[0]));
      CADRE_ASSIGN_OR_RETURN(const Value key, Eval(*expr.children[1]));
      return GetItem(object, key);
    }
    case Expr::Kind::kSlice:
      return EvalSlice(expr);
    case Expr::Kind::kCall:
      return Call(expr, Value());
    case Expr::Kind::kFilter:
      return EvalFilter(expr);
    case Expr::Kind::kTest:
      return EvalTest(expr);
    case Expr::Kind::kNot: {
      CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
      return Value::Bool(!value.Truth());
    }
    case Expr::Kind::kUnary: {
      CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
      return Unary(expr.text, value);
    }
    case Expr::Kind::kBinary: {
      CADRE_ASSIGN_OR_RETURN(const Value left, Eval(*expr.children[0]));
      CADRE_ASSIGN_OR_RETURN(const Value right, Eval(*expr.children[1]));
      return Binary(expr.text, left, right);
    }
    case Expr::Kind::kCompare:
      return EvalCompare(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      // The value that decides, as in Python.
      Value value;
      for (const ExprPtr& child : expr.children) {
        CADRE_ASSIGN_OR_RETURN(value, Eval(*child));
        if (value.Truth() == (expr.kind == Expr::Kind::kOr)) break;
      }
      return value;
    }
    case Expr::Kind::kIf: {
      CADRE_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.children[0]));
      if (condition.Truth()) return Eval(*expr.children[1]);
      if (expr.children[2] != nullptr) return Eval(*expr.children[2]);
      return Value::Undefined("the inline if-expression without else");
    }
  }
  return Value();
}

absl::StatusOr<Value> Evaluator::EvalName(const std::string& name) const {
  const Value* value = scope_->Find(name);
  return value == nullptr ? Value::Undefined(name) : *value;
}

absl::StatusOr<List> Evaluator::EvalList(const std::vector<ExprPtr>& children) {
  List items;
  for (const ExprPtr& child : children) {
    CADRE_ASSIGN_OR_RETURN(Value item, Eval(*child));
    items.push_back(std::move(item));
  }
  return items;
}

absl::StatusOr<Value> Evaluator::EvalDict(const Expr& expr) {
  Dict entries;
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    CADRE_ASSIGN_OR_RETURN(const Value key, Eval(*expr.children[i]));
    CADRE_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[i + 1]));
    if (!key.is_string()) {
      return TemplateError(absl::StrCat(
          "keys of a dict must be texts here, not a ", key.TypeName()));
    }
    const auto same = std::find_if(
        entries.begin(), entries.end(),
        [&](const auto& entry) { return entry.first == key.string(); });
    if (same != entries.end()) {
      same->second = std::move(value);
    } else {
      entries.emplace_back(key.string(), std::move(value));
    }
  }
  return Value::MakeDict(std::move(entries));
}

absl::StatusOr<Value> Evaluator::EvalSlice(const Expr& expr) {
  CADRE_ASSIGN_OR_RETURN(const Value object, Eval(*expr.children[0]));
  Value bounds[3];
  for (int i = 0; i < 3; ++i) {
    if (expr.children[i + 1] == nullptr) continue;
    CADRE_ASSIGN_OR_RETURN(bounds[i], Eval(*expr.children[i + 1]));
  }
  CADRE_RETURN_IF_ERROR(Charge(object.weight()));
  return GetSlice(object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Value> Evaluator::EvalCompare(const Expr& expr) {
  CADRE_ASSIGN_OR_RETURN(Value left, Eval(*expr.children[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    CADRE_ASSIGN_OR_RETURN(Value right, Eval(*expr.children[i + 1]));
    CADRE_RETURN_IF_ERROR(Charge(std::max(left.weight(), right.weight())));
    CADRE_ASSIGN_OR_RETURN(const bool holds,
                           CompareValues(expr.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Evaluator::EvalFilter(const Expr& expr) {
  CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
  CADRE_ASSIGN_OR_RETURN(const CallArguments arguments,
                         EvalArguments(expr.arguments));
  CADRE_RETURN_IF_ERROR(Charge(value.weight()));
  return ApplyFilter(expr.text, value, arguments);
}

absl::StatusOr<Value> Evaluator::EvalTest(const Expr& expr) {
  CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*expr.children[0]));
  CADRE_ASSIGN_OR_RETURN(const CallArguments arguments,
                         EvalArguments(expr.arguments));
  CADRE_ASSIGN_OR_RETURN(const bool holds,
                         ApplyTest(expr.text, value, arguments));
  return Value::Bool(holds);
}

absl::StatusOr<CallArguments> Evaluator::EvalArguments(
    const std::vector<Argument>& arguments) {
  CallArguments out;
  for (const Argument& argument : arguments) {
    CADRE_ASSIGN_OR_RETURN(Value value, Eval(*argument.value));
    if (argument.name.empty()) {
      out.positional.push_back(std::move(value));
    } else {
      out.named.emplace_back(argument.name, std::move(value));
    }
  }
  return out;
}

absl::StatusOr<Value> Evaluator::Call(const Expr& expr, const Value& caller) {
  CADRE_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.children[0]));
  CADRE_ASSIGN_OR_RETURN(const CallArguments arguments,
                         EvalArguments(expr.arguments));
  if (callee.is_undefined()) {
    return TemplateError(
        absl::StrCat("`", callee.string(), "` is undefined and called"));
  }
  if (!callee.is(Value::Kind::kCallable)) {
    return TemplateError(
        absl::StrCat("'", callee.TypeName(), "' object is not callable"));
  }
  const Callable& callable = *callee.callable();
  if (!caller.is_none() && callable.kind != Callable::Kind::kMacro) {
    return TemplateError("a call block can call macros only");
  }
  switch (callable.kind) {
    case Callable::Kind::kFunction:
      return CallFunction(callable.name, arguments);
    case Callable::Kind::kMethod:
      CADRE_RETURN_IF_ERROR(Charge(callable.self.weight()));
      return CallMethod(callable.self, callable.name, arguments);
    case Callable::Kind::kMacro:
      break;
  }
  return CallMacro(callable, arguments, caller);
}

absl::StatusOr<Value> Evaluator::CallMacro(const Callable& macro,
                                           const CallArguments& arguments,
                                           const Value& caller) {
  std::shared_ptr<Scope> definition = macro.scope.lock();
  if (definition == nullptr) {
    return TemplateError(absl::StrCat("macro `", macro.name,
                                      "` outlived the block that defines it"));
  }
  const std::vector<Parameter>& parameters = *macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return TemplateError(absl::StrCat("macro `", macro.name,
                                      "` takes not more than ",
                                      parameters.size(), " argument(s)"));
  }
  for (const auto& [name, value] : arguments.named) {
    const bool known = std::any_of(
        parameters.begin(), parameters.end(),
        [&, &name = name](const Parameter& p) { return p.name == name; });
    if (!known) {
      return TemplateError(absl::StrCat("macro `", macro.name,
                                        "` takes no argument `", name, "`"));
    }
  }
  const ScopeGuard guard(this, std::move(definition));
  if (!caller.is_none()) scope_->Set("caller", caller);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (const Value* given = arguments.Get(i, parameter.name)) {
      scope_->Set(parameter.name, *given);
    } else if (parameter.fallback != nullptr) {
      CADRE_ASSIGN_OR_RETURN(Value value, Eval(*parameter.fallback));
      scope_->Set(parameter.name, std::move(value));
    } else {
      scope_->Set(parameter.name, Value::Undefined(parameter.name));
    }
  }
  return Capture(*macro.body);
}

}  // namespace cadre::jinja
