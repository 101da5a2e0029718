#ifndef CADRE_BASE_TEXT_JINJA_EXPRESSION_PARSER_H_
#define CADRE_BASE_TEXT_JINJA_EXPRESSION_PARSER_H_

// The expressions inside tags: a recursive descent with Jinja's precedence. The
// first error sticks; what is returned after it is meaningless. Not
// thread-safe.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/text/jinja/ast.h"
#include "base/text/jinja/lexer.h"

namespace cadre::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens);

  const Token& Peek(int ahead = 0) const;
  Token Take();
  bool IsOperator(absl::string_view text, int ahead = 0) const;
  bool IsName(absl::string_view text, int ahead = 0) const;
  bool TakeOperator(absl::string_view text);
  bool TakeName(absl::string_view text);
  void ExpectOperator(absl::string_view text);
  std::string ExpectName();
  void Expect(Token::Kind kind, absl::string_view what);

  ExprPtr Expression();  // with a ? : of "if" and "else"
  ExprPtr ExpressionNoTernary();
  ExprPtr TupleOrExpression();         // a, b or a
  ExprPtr TargetList();                // what `for` and `set` assign to
  std::vector<Argument> Arguments();   // behind '(', through ')'
  std::vector<ExprPtr> FilterChain();  // f(x) | g: for blocks

  bool failed() const { return !error_.empty(); }
  const std::string& error() const { return error_; }
  void Fail(absl::string_view message);

 private:
  static constexpr int kMaxDepth = 200;
  // Longer chains (a + b + c ...) are deep trees all the same.
  static constexpr int kMaxChain = 300;

  // Keeps a template of brackets from exhausting the stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser* parser) : parser_(parser) {
      if (++parser_->depth_ > kMaxDepth) {
        parser_->Fail("expression nested too deep");
      }
    }
    ~Nesting() { --parser_->depth_; }

   private:
    ExpressionParser* parser_;
  };

  ExprPtr Make(Expr::Kind kind, ExprPtr a = nullptr, ExprPtr b = nullptr) const;
  ExprPtr Constant(Value value) const;
  ExprPtr Or();
  ExprPtr And();
  ExprPtr Not();
  ExprPtr Compare();
  ExprPtr Sum();
  ExprPtr Concatenation();
  ExprPtr Product();
  ExprPtr Power();
  ExprPtr Unary(bool with_filters);
  ExprPtr Primary();
  ExprPtr Parenthesis();
  ExprPtr ListLiteral();
  ExprPtr DictLiteral();
  ExprPtr Postfix(ExprPtr expr);
  ExprPtr Subscript(ExprPtr expr);
  ExprPtr Filters(ExprPtr expr);
  ExprPtr Filter(ExprPtr expr);
  ExprPtr Test(ExprPtr expr);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
  std::string error_;
};

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_EXPRESSION_PARSER_H_
