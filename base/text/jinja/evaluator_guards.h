#ifndef CADRE_BASE_TEXT_JINJA_EVALUATOR_GUARDS_H_
#define CADRE_BASE_TEXT_JINJA_EVALUATOR_GUARDS_H_

// What the evaluator's two files put on the stack. Private to them.

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/text/jinja/evaluator.h"

namespace cadre::jinja {

// One level deeper while it lives. Bounds the C++ stack: a level takes a few
// kilobytes, and more under a sanitizer.
class Evaluator::Nesting {
 public:
  explicit Nesting(Evaluator* evaluator) : evaluator_(evaluator) {
    ++evaluator_->depth_;
  }
  ~Nesting() { --evaluator_->depth_; }
  absl::Status status() const {
    if (evaluator_->depth_ <= kMaxLevels) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template calls or nests too deep");
  }

 private:
  static constexpr int kMaxLevels = 400;
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

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_EVALUATOR_GUARDS_H_
