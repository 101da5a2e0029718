#include "base/text/jinja/expression_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::jinja {
namespace {

constexpr int kMaxDepth = 200;
// Longer chains (a + b + c ...) are deep trees all the same.
constexpr int kMaxChain = 300;

}  // namespace

class ExpressionParser::Nesting {
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

ExprPtr ExpressionParser::Primary() {
  const Token token = Peek();
  switch (token.kind) {
    case Token::Kind::kName: {
      Take();
      if (token.text == "true" || token.text == "True") {
        return Constant(Value::Bool(true));
      }
      if (token.text == "false" || token.text == "False") {
        return Constant(Value::Bool(false));
      }
      if (token.text == "none" || token.text == "None") {
        return Constant(Value());
      }
      ExprPtr name = Make(Expr::Kind::kName);
      name->text = token.text;
      return name;
    }
    case Token::Kind::kString: {
      std::string text;
      while (Peek().kind == Token::Kind::kString) text += Take().text;
      return Constant(Value::String(std::move(text)));
    }
    case Token::Kind::kInteger:
      return Constant(Value::Int(Take().int_value));
    case Token::Kind::kFloat:
      return Constant(Value::Float(Take().float_value));
    default:
      break;
  }
  if (TakeOperator("(")) return Parenthesis();
  if (TakeOperator("[")) return ListLiteral();
  if (TakeOperator("{")) return DictLiteral();
  Fail(token.text.empty() ? "expected an expression"
                          : absl::StrCat("unexpected `", token.text, "`"));
  return Constant(Value());
}

ExprPtr ExpressionParser::Parenthesis() {
  if (TakeOperator(")")) return Make(Expr::Kind::kTuple);
  ExprPtr first = Expression();
  if (TakeOperator(")")) return first;
  ExprPtr tuple = Make(Expr::Kind::kTuple, std::move(first));
  while (TakeOperator(",") && !IsOperator(")")) {
    tuple->children.push_back(Expression());
  }
  ExpectOperator(")");
  return tuple;
}

ExprPtr ExpressionParser::ListLiteral() {
  ExprPtr list = Make(Expr::Kind::kList);
  while (!failed() && !IsOperator("]")) {
    list->children.push_back(Expression());
    if (!TakeOperator(",")) break;
  }
  ExpectOperator("]");
  return list;
}

ExprPtr ExpressionParser::DictLiteral() {
  ExprPtr dict = Make(Expr::Kind::kDict);
  while (!failed() && !IsOperator("}")) {
    dict->children.push_back(Expression());
    ExpectOperator(":");
    dict->children.push_back(Expression());
    if (!TakeOperator(",")) break;
  }
  ExpectOperator("}");
  return dict;
}

std::vector<Argument> ExpressionParser::Arguments() {
  std::vector<Argument> arguments;
  while (!failed() && !IsOperator(")")) {
    Argument argument;
    if (IsOperator("*") || IsOperator("**")) {
      Fail("unpacked arguments are not supported");
      break;
    }
    if (Peek().kind == Token::Kind::kName && IsOperator("=", 1)) {
      argument.name = Take().text;
      Take();
    } else if (!arguments.empty() && !arguments.back().name.empty()) {
      Fail("argument by position behind one by name");
      break;
    }
    argument.value = Expression();
    arguments.push_back(std::move(argument));
    if (!TakeOperator(",")) break;
  }
  ExpectOperator(")");
  return arguments;
}

ExprPtr ExpressionParser::Postfix(ExprPtr expr) {
  for (int chain = 0; !failed();) {
    if (TakeOperator(".")) {
      ExprPtr attribute;
      if (Peek().kind == Token::Kind::kInteger) {
        attribute = Make(Expr::Kind::kItem, std::move(expr),
                         Constant(Value::Int(Peek().int_value)));
        Take();
      } else {
        attribute = Make(Expr::Kind::kAttribute, std::move(expr));
        attribute->text = ExpectName();
      }
      expr = std::move(attribute);
    } else if (TakeOperator("[")) {
      expr = Subscript(std::move(expr));
    } else if (TakeOperator("(")) {
      expr = Make(Expr::Kind::kCall, std::move(expr));
      expr->arguments = Arguments();
    } else {
      break;
    }
    if (++chain > kMaxChain) Fail("too many accesses in a row");
  }
  return expr;
}

ExprPtr ExpressionParser::Subscript(ExprPtr expr) {
  ExprPtr bounds[3];
  int colons = 0;
  while (!failed() && !IsOperator("]")) {
    if (TakeOperator(":")) {
      if (++colons > 2) Fail("too many colons in a slice");
      continue;
    }
    if (bounds[std::min(colons, 2)] != nullptr) {
      Fail("expected `]`");
      break;
    }
    bounds[std::min(colons, 2)] = Expression();
  }
  ExpectOperator("]");
  if (colons == 0) {
    if (bounds[0] == nullptr) Fail("expected an index");
    return Make(Expr::Kind::kItem, std::move(expr), std::move(bounds[0]));
  }
  ExprPtr slice = Make(Expr::Kind::kSlice, std::move(expr));
  for (ExprPtr& bound : bounds) slice->children.push_back(std::move(bound));
  return slice;
}

ExprPtr ExpressionParser::Filters(ExprPtr expr) {
  for (int chain = 0; !failed();) {
    if (TakeOperator("|")) {
      expr = Filter(std::move(expr));
    } else if (TakeName("is")) {
      expr = Test(std::move(expr));
    } else if (IsOperator("(") || IsOperator("[") || IsOperator(".")) {
      // Behind a filter: (a | f)(x), a | f | g ... .name
      expr = Postfix(std::move(expr));
    } else {
      break;
    }
    if (++chain > kMaxChain) Fail("too many filters in a row");
  }
  return expr;
}

ExprPtr ExpressionParser::Filter(ExprPtr expr) {
  ExprPtr filter = Make(Expr::Kind::kFilter, std::move(expr));
  filter->text = ExpectName();
  if (TakeOperator("(")) filter->arguments = Arguments();
  return filter;
}

std::vector<ExprPtr> ExpressionParser::FilterChain() {
  std::vector<ExprPtr> filters;
  do {
    filters.push_back(Filter(nullptr));
  } while (TakeOperator("|"));
  return filters;
}

ExprPtr ExpressionParser::Test(ExprPtr expr) {
  const bool negated = TakeName("not");
  ExprPtr test = Make(Expr::Kind::kTest, std::move(expr));
  test->text = ExpectName();
  const Token& next = Peek();
  const bool operand =
      next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
      next.kind == Token::Kind::kFloat ||
      (next.kind == Token::Kind::kName && next.text != "else" &&
       next.text != "or" && next.text != "and" && next.text != "is" &&
       next.text != "if" && next.text != "in" && next.text != "not") ||
      IsOperator("[") || IsOperator("{");
  if (TakeOperator("(")) {
    test->arguments = Arguments();
  } else if (operand) {
    const Nesting nesting(this);
    if (!failed()) {
      test->arguments.push_back({"", Postfix(Primary())});
    }
  }
  return negated ? Make(Expr::Kind::kNot, std::move(test)) : std::move(test);
}

}  // namespace cadre::jinja
