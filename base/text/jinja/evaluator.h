#ifndef CADRE_BASE_TEXT_JINJA_EVALUATOR_H_
#define CADRE_BASE_TEXT_JINJA_EVALUATOR_H_

// Runs a parsed template once. Counts steps, so that no template runs for
// ever. Not thread-safe; the tree must outlive it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/text/jinja/ast.h"
#include "base/text/jinja/runtime.h"
#include "base/text/jinja/template.h"

namespace cadre::jinja {

class Evaluator {
 public:
  explicit Evaluator(const Limits& limits);

  void SetVariable(const std::string& name, Value value);
  absl::StatusOr<Rendered> Run(const std::vector<StmtPtr>& body);

 private:
  // How a list of statements was left.
  enum class Flow { kNormal, kBreak, kContinue };
  class Nesting;
  class ScopeGuard;

  absl::StatusOr<Flow> ExecAll(const std::vector<StmtPtr>& body);
  absl::StatusOr<Flow> Exec(const Stmt& stmt);
  absl::StatusOr<Flow> ExecFor(const Stmt& stmt);
  absl::StatusOr<List> FilterItems(const Stmt& stmt, List items);
  absl::StatusOr<Flow> ExecWith(const Stmt& stmt);
  absl::Status ExecGeneration(const Stmt& stmt);
  absl::Status ExecCall(const Stmt& stmt);
  absl::Status Assign(const Expr& target, const Value& value);
  absl::Status Print(const std::string& text);
  // What the body prints, in a scope of its own.
  absl::StatusOr<Value> Capture(const std::vector<StmtPtr>& body);
  absl::StatusOr<Value> Filtered(const std::vector<ExprPtr>& filters,
                                 Value value);

  absl::StatusOr<Value> Eval(const Expr& expr);
  absl::StatusOr<Value> EvalUncharged(const Expr& expr);
  absl::StatusOr<Value> EvalName(const std::string& name) const;
  absl::StatusOr<Value> EvalDict(const Expr& expr);
  absl::StatusOr<Value> EvalSlice(const Expr& expr);
  absl::StatusOr<Value> EvalCompare(const Expr& expr);
  absl::StatusOr<Value> EvalFilter(const Expr& expr);
  absl::StatusOr<Value> EvalTest(const Expr& expr);
  absl::StatusOr<List> EvalList(const std::vector<ExprPtr>& children);
  absl::StatusOr<CallArguments> EvalArguments(
      const std::vector<Argument>& arguments);
  // caller: what the name `caller` means inside a macro, or none.
  absl::StatusOr<Value> Call(const Expr& expr, const Value& caller);
  absl::StatusOr<Value> CallMacro(const Callable& macro,
                                  const CallArguments& arguments,
                                  const Value& caller);

  absl::Status Charge(int64_t steps);
  absl::Status At(int line, const absl::Status& status) const;

  Limits limits_;
  int64_t steps_ = 0;
  int depth_ = 0;
  std::shared_ptr<Scope> global_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;  // the root's text, or that of a capture
  Rendered rendered_;
};

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_EVALUATOR_H_
