#include "base/text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::jinja {
ExpressionParser::ExpressionParser(std::vector<Token> tokens)
    : tokens_(std::move(tokens)) {}

const Token& ExpressionParser::Peek(int ahead) const {
  return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::Take() {
  Token token = Peek();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

void ExpressionParser::Fail(absl::string_view message) {
  if (error_.empty()) {
    error_ = absl::StrCat("template line ", Peek().line, ": ", message);
  }
  pos_ = tokens_.size() - 1;  // the end token stops every loop
}

bool ExpressionParser::IsOperator(absl::string_view text, int ahead) const {
  const Token& token = Peek(ahead);
  return token.kind == Token::Kind::kOperator && token.text == text;
}
bool ExpressionParser::IsName(absl::string_view text, int ahead) const {
  const Token& token = Peek(ahead);
  return token.kind == Token::Kind::kName && token.text == text;
}
bool ExpressionParser::TakeOperator(absl::string_view text) {
  if (!IsOperator(text)) return false;
  Take();
  return true;
}
bool ExpressionParser::TakeName(absl::string_view text) {
  if (!IsName(text)) return false;
  Take();
  return true;
}
void ExpressionParser::ExpectOperator(absl::string_view text) {
  if (!TakeOperator(text)) Fail(absl::StrCat("expected `", text, "`"));
}
std::string ExpressionParser::ExpectName() {
  if (Peek().kind != Token::Kind::kName) {
    Fail("expected a name");
    return "";
  }
  return Take().text;
}
void ExpressionParser::Expect(Token::Kind kind, absl::string_view what) {
  if (Peek().kind == kind) {
    Take();
  } else {
    Fail(absl::StrCat("expected ", what, Peek().text.empty() ? "" : ", found ",
                      Peek().text));
  }
}

ExprPtr ExpressionParser::Make(Expr::Kind kind, ExprPtr a, ExprPtr b) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = Peek().line;
  if (a != nullptr) expr->children.push_back(std::move(a));
  if (b != nullptr) expr->children.push_back(std::move(b));
  return expr;
}

ExprPtr ExpressionParser::Constant(Value value) const {
  ExprPtr expr = Make(Expr::Kind::kConstant);
  expr->constant = std::move(value);
  return expr;
}

ExprPtr ExpressionParser::Expression() {
  const Nesting nesting(this);
  ExprPtr expr = Or();
  for (int chain = 0; !failed() && TakeName("if");) {
    ExprPtr condition = Or();
    ExprPtr choice =
        Make(Expr::Kind::kIf, std::move(condition), std::move(expr));
    choice->children.push_back(TakeName("else") ? Expression() : nullptr);
    expr = std::move(choice);
    if (++chain > kMaxChain) Fail("too many conditions in a row");
  }
  return expr;
}

ExprPtr ExpressionParser::ExpressionNoTernary() { return Or(); }

ExprPtr ExpressionParser::TupleOrExpression() {
  ExprPtr first = Expression();
  if (!IsOperator(",")) return first;
  ExprPtr tuple = Make(Expr::Kind::kTuple, std::move(first));
  while (TakeOperator(",")) {
    const Token::Kind kind = Peek().kind;
    if (kind == Token::Kind::kTagEnd || kind == Token::Kind::kPrintEnd) break;
    tuple->children.push_back(Expression());
  }
  return tuple;
}

ExprPtr ExpressionParser::TargetList() {
  const auto single = [&]() -> ExprPtr {
    if (TakeOperator("(")) {
      ExprPtr inner = TargetList();
      ExpectOperator(")");
      return inner;
    }
    ExprPtr name = Make(Expr::Kind::kName);
    name->text = ExpectName();
    if (!TakeOperator(".")) return name;
    ExprPtr attribute = Make(Expr::Kind::kAttribute, std::move(name));
    attribute->text = ExpectName();
    return attribute;
  };
  const Nesting nesting(this);
  if (failed()) return Make(Expr::Kind::kName);
  ExprPtr first = single();
  if (!IsOperator(",")) return first;
  ExprPtr tuple = Make(Expr::Kind::kTuple, std::move(first));
  while (TakeOperator(",")) {
    if (Peek().kind != Token::Kind::kName && !IsOperator("(")) break;
    tuple->children.push_back(single());
  }
  return tuple;
}

ExprPtr ExpressionParser::Or() {
  ExprPtr left = And();
  if (!IsName("or")) return left;
  ExprPtr expr = Make(Expr::Kind::kOr, std::move(left));
  while (TakeName("or")) expr->children.push_back(And());
  return expr;
}

ExprPtr ExpressionParser::And() {
  ExprPtr left = Not();
  if (!IsName("and")) return left;
  ExprPtr expr = Make(Expr::Kind::kAnd, std::move(left));
  while (TakeName("and")) expr->children.push_back(Not());
  return expr;
}

ExprPtr ExpressionParser::Not() {
  const Nesting nesting(this);
  if (failed() || !TakeName("not")) return Compare();
  return Make(Expr::Kind::kNot, Not());
}

ExprPtr ExpressionParser::Compare() {
  ExprPtr left = Sum();
  ExprPtr expr;
  while (!failed()) {
    std::string op;
    for (absl::string_view candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (TakeOperator(candidate)) op = std::string(candidate);
    }
    if (op.empty() && TakeName("in")) op = "in";
    if (op.empty() && IsName("not") && IsName("in", 1)) {
      Take();
      Take();
      op = "not in";
    }
    if (op.empty()) break;
    if (expr == nullptr) {
      expr = Make(Expr::Kind::kCompare, std::move(left));
    }
    expr->operators.push_back(std::move(op));
    expr->children.push_back(Sum());
  }
  return expr == nullptr ? std::move(left) : std::move(expr);
}

ExprPtr ExpressionParser::Sum() {
  ExprPtr left = Concatenation();
  for (int chain = 0; !failed() && (IsOperator("+") || IsOperator("-"));) {
    const std::string op = Take().text;
    left = Make(Expr::Kind::kBinary, std::move(left), Concatenation());
    left->text = op;
    if (++chain > kMaxChain) Fail("too many operators in a row");
  }
  return left;
}

ExprPtr ExpressionParser::Concatenation() {
  ExprPtr left = Product();
  for (int chain = 0; !failed() && TakeOperator("~");) {
    left = Make(Expr::Kind::kBinary, std::move(left), Product());
    left->text = "~";
    if (++chain > kMaxChain) Fail("too many operators in a row");
  }
  return left;
}

ExprPtr ExpressionParser::Product() {
  ExprPtr left = Power();
  for (int chain = 0; !failed() && (IsOperator("*") || IsOperator("/") ||
                                    IsOperator("//") || IsOperator("%"));) {
    const std::string op = Take().text;
    left = Make(Expr::Kind::kBinary, std::move(left), Power());
    left->text = op;
    if (++chain > kMaxChain) Fail("too many operators in a row");
  }
  return left;
}

ExprPtr ExpressionParser::Power() {
  ExprPtr left = Unary(true);
  for (int chain = 0; !failed() && TakeOperator("**");) {
    left = Make(Expr::Kind::kBinary, std::move(left), Unary(true));
    left->text = "**";
    if (++chain > kMaxChain) Fail("too many operators in a row");
  }
  return left;
}

ExprPtr ExpressionParser::Unary(bool with_filters) {
  const Nesting nesting(this);
  if (failed()) return Constant(Value());
  ExprPtr expr;
  if (IsOperator("-") || IsOperator("+")) {
    const std::string op = Take().text;
    expr = Make(Expr::Kind::kUnary, Unary(false));
    expr->text = op;
  } else {
    expr = Primary();
  }
  expr = Postfix(std::move(expr));
  return with_filters ? Filters(std::move(expr)) : std::move(expr);
}

}  // namespace cadre::jinja
