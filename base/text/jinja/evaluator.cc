#include "base/text/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::jinja {
namespace {

// Bounds the C++ stack: a level takes about a kilobyte.
constexpr int kMaxDepth = 1000;
constexpr int kMaxValueDepth = 100;
constexpr int64_t kMaxValueWeight = 10'000'000;

}  // namespace

class Evaluator::Nesting {
 public:
  explicit Nesting(Evaluator* evaluator) : evaluator_(evaluator) {
    ++evaluator_->depth_;
  }
  ~Nesting() { --evaluator_->depth_; }
  absl::Status status() const {
    if (evaluator_->depth_ <= kMaxDepth) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template calls or nests too deep");
  }

 private:
  Evaluator* evaluator_;
};

// Makes a scope the current one for a while.
class Evaluator::ScopeGuard {
 public:
  ScopeGuard(Evaluator* evaluator, std::shared_ptr<Scope> parent)
      : evaluator_(evaluator), saved_(evaluator->scope_) {
    evaluator_->scope_ = std::make_shared<Scope>();
    evaluator_->scope_->parent = std::move(parent);
  }
  explicit ScopeGuard(Evaluator* evaluator)
      : ScopeGuard(evaluator, evaluator->scope_) {}
  ~ScopeGuard() { evaluator_->scope_ = std::move(saved_); }

 private:
  Evaluator* evaluator_;
  std::shared_ptr<Scope> saved_;
};

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
