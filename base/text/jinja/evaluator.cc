#include "base/text/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/evaluator_guards.h"

namespace cadre::jinja {
Evaluator::Evaluator(const Limits& limits)
    : limits_(limits),
      global_(std::make_shared<Scope>()),
      scope_(std::make_shared<Scope>()) {
  scope_->parent = global_;
  for (const std::string& name : FunctionNames()) {
    auto callable = std::make_shared<Callable>();
    callable->kind = Callable::Kind::kFunction;
    callable->name = name;
    global_->Set(name, Value::Of(std::shared_ptr<const Callable>(callable)));
  }
}

void Evaluator::SetVariable(const std::string& name, Value value) {
  global_->Set(name, std::move(value));
}

absl::Status Evaluator::Charge(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template takes more than ", limits_.steps, " steps"));
}

absl::Status Evaluator::At(int line, const absl::Status& status) const {
  if (status.ok() || absl::StartsWith(status.message(), "template line ")) {
    return status;
  }
  return Annotate(status, absl::StrCat("template line ", line));
}

absl::StatusOr<Rendered> Evaluator::Run(const std::vector<StmtPtr>& body) {
  out_ = &rendered_.text;
  CADRE_RETURN_IF_ERROR(ExecAll(body).status());
  return std::move(rendered_);
}

absl::Status Evaluator::Print(const std::string& text) {
  CADRE_RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(text.size()) / 16));
  if (static_cast<int64_t>(out_->size() + text.size()) > limits_.output_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the template prints more than ", limits_.output_bytes, " bytes"));
  }
  *out_ += text;
  return absl::OkStatus();
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecAll(
    const std::vector<StmtPtr>& body) {
  for (const StmtPtr& stmt : body) {
    absl::StatusOr<Flow> flow = Exec(*stmt);
    if (!flow.ok()) return At(stmt->line, flow.status());
    if (*flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::Exec(const Stmt& stmt) {
  const Nesting nesting(this);
  CADRE_RETURN_IF_ERROR(nesting.status());
  CADRE_RETURN_IF_ERROR(Charge(1));
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      CADRE_RETURN_IF_ERROR(Print(stmt.text));
      return Flow::kNormal;
    case Stmt::Kind::kPrint: {
      CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      CADRE_RETURN_IF_ERROR(Charge(value.weight()));
      CADRE_RETURN_IF_ERROR(Print(value.Str()));
      return Flow::kNormal;
    }
    case Stmt::Kind::kIf: {
      CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      return ExecAll(value.Truth() ? stmt.body : stmt.otherwise);
    }
    case Stmt::Kind::kFor:
      return ExecFor(stmt);
    case Stmt::Kind::kSet: {
      CADRE_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      CADRE_RETURN_IF_ERROR(Assign(*stmt.target, value));
      return Flow::kNormal;
    }
    case Stmt::Kind::kSetBlock: {
      CADRE_ASSIGN_OR_RETURN(Value value, Capture(stmt.body));
      CADRE_ASSIGN_OR_RETURN(value, Filtered(stmt.filters, std::move(value)));
      CADRE_RETURN_IF_ERROR(Assign(*stmt.target, value));
      return Flow::kNormal;
    }
    case Stmt::Kind::kMacro: {
      auto macro = std::make_shared<Callable>();
      macro->kind = Callable::Kind::kMacro;
      macro->name = stmt.text;
      macro->parameters = &stmt.parameters;
      macro->body = &stmt.body;
      macro->scope = scope_;
      scope_->Set(stmt.text, Value::Of(std::shared_ptr<const Callable>(macro)));
      return Flow::kNormal;
    }
    case Stmt::Kind::kCall:
      CADRE_RETURN_IF_ERROR(ExecCall(stmt));
      return Flow::kNormal;
    case Stmt::Kind::kFilter: {
      CADRE_ASSIGN_OR_RETURN(Value value, Capture(stmt.body));
      CADRE_ASSIGN_OR_RETURN(value, Filtered(stmt.filters, std::move(value)));
      CADRE_RETURN_IF_ERROR(Print(value.Str()));
      return Flow::kNormal;
    }
    case Stmt::Kind::kWith:
      return ExecWith(stmt);
    case Stmt::Kind::kGeneration:
      CADRE_RETURN_IF_ERROR(ExecGeneration(stmt));
      return Flow::kNormal;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

// {% for x in items if condition %}: the loop variables count what is left.
absl::StatusOr<List> Evaluator::FilterItems(const Stmt& stmt, List items) {
  if (stmt.condition == nullptr) return items;
  List kept;
  for (Value& item : items) {
    const ScopeGuard guard(this);
    CADRE_RETURN_IF_ERROR(Assign(*stmt.target, item));
    CADRE_ASSIGN_OR_RETURN(const Value condition, Eval(*stmt.condition));
    if (condition.Truth()) kept.push_back(std::move(item));
  }
  return kept;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecFor(const Stmt& stmt) {
  CADRE_ASSIGN_OR_RETURN(const Value iterable, Eval(*stmt.expr));
  CADRE_RETURN_IF_ERROR(Charge(iterable.weight()));
  CADRE_ASSIGN_OR_RETURN(List items, iterable.Iterate());
  CADRE_ASSIGN_OR_RETURN(items, FilterItems(stmt, std::move(items)));
  if (items.empty()) {
    const ScopeGuard guard(this);
    return ExecAll(stmt.otherwise);
  }
  auto loop = std::make_shared<LoopState>();
  loop->items = std::make_shared<const List>(std::move(items));
  absl::StatusOr<Flow> result = Flow::kNormal;
  for (const Value& item : *loop->items) {
    const ScopeGuard guard(this);
    scope_->Set("loop", Value::Of(loop));
    absl::Status assigned = Assign(*stmt.target, item);
    result = assigned.ok() ? ExecAll(stmt.body) : assigned;
    if (!result.ok() || *result == Flow::kBreak) break;
    ++loop->index0;
  }
  if (!result.ok()) return result;
  return Flow::kNormal;
}

absl::StatusOr<Evaluator::Flow> Evaluator::ExecWith(const Stmt& stmt) {
  List values;
  for (const ExprPtr& expr : stmt.values) {
    CADRE_ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  const ScopeGuard guard(this);
  for (size_t i = 0; i < values.size(); ++i) {
    CADRE_RETURN_IF_ERROR(Assign(*stmt.targets[i], values[i]));
  }
  return ExecAll(stmt.body);
}

absl::Status Evaluator::ExecGeneration(const Stmt& stmt) {
  if (out_ != &rendered_.text) {
    return TemplateError(
        "a generation block inside a macro, set or filter block has no place "
        "in the text; move it out");
  }
  const int64_t begin = static_cast<int64_t>(out_->size());
  {
    const ScopeGuard guard(this);
    CADRE_RETURN_IF_ERROR(ExecAll(stmt.body).status());
  }
  const int64_t end = static_cast<int64_t>(out_->size());
  rendered_.generations.push_back({begin, end});
  return absl::OkStatus();
}

absl::Status Evaluator::ExecCall(const Stmt& stmt) {
  auto caller = std::make_shared<Callable>();
  caller->kind = Callable::Kind::kMacro;
  caller->name = "caller";
  caller->parameters = &stmt.parameters;
  caller->body = &stmt.body;
  caller->scope = scope_;
  CADRE_ASSIGN_OR_RETURN(
      const Value result,
      Call(*stmt.expr, Value::Of(std::shared_ptr<const Callable>(caller))));
  return Print(result.Str());
}

absl::Status Evaluator::Assign(const Expr& target, const Value& value) {
  if (target.kind == Expr::Kind::kName) {
    scope_->Set(target.text, value);
    return absl::OkStatus();
  }
  if (target.kind == Expr::Kind::kAttribute) {
    CADRE_ASSIGN_OR_RETURN(const Value object, Eval(*target.children[0]));
    if (!object.is(Value::Kind::kNamespace)) {
      return TemplateError(
          absl::StrCat("cannot assign attribute `", target.text, "` of a ",
                       object.TypeName(), "; only namespaces can be changed"));
    }
    // A namespace must not come to hold itself, or it would never be freed.
    if (value.HoldsNamespace()) {
      return TemplateError("a namespace cannot hold a namespace");
    }
    for (auto& [name, old] : object.name_space()->variables) {
      if (name == target.text) {
        old = value;
        return absl::OkStatus();
      }
    }
    object.name_space()->variables.emplace_back(target.text, value);
    return absl::OkStatus();
  }
  CADRE_ASSIGN_OR_RETURN(const List items, value.Iterate());
  if (items.size() != target.children.size()) {
    return TemplateError(absl::StrCat("cannot unpack ", items.size(),
                                      " values into ", target.children.size(),
                                      " names"));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    CADRE_RETURN_IF_ERROR(Assign(*target.children[i], items[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Evaluator::Capture(const std::vector<StmtPtr>& body) {
  const ScopeGuard guard(this);
  std::string text;
  std::string* const saved = std::exchange(out_, &text);
  const absl::Status status = ExecAll(body).status();
  out_ = saved;
  CADRE_RETURN_IF_ERROR(status);
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Evaluator::Filtered(const std::vector<ExprPtr>& filters,
                                          Value value) {
  for (const ExprPtr& filter : filters) {
    CADRE_ASSIGN_OR_RETURN(const CallArguments arguments,
                           EvalArguments(filter->arguments));
    CADRE_ASSIGN_OR_RETURN(value, ApplyFilter(filter->text, value, arguments));
    CADRE_RETURN_IF_ERROR(Charge(value.weight()));
  }
  return value;
}

}  // namespace cadre::jinja
