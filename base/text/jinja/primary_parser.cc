// The operands of an expression: names, literals, brackets, and what follows
// them (calls, subscripts, filters, tests).

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/jinja/expression_parser.h"

namespace cadre::jinja {

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
