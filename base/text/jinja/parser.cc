// Statements: what stands in {% %} tags, with the text between them.

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jinja/ast.h"
#include "base/text/jinja/expression_parser.h"
#include "base/text/jinja/lexer.h"

namespace cadre::jinja {
namespace {

constexpr int kMaxDepth = 200;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  absl::StatusOr<ParsedTemplate> Run() {
    ParsedTemplate parsed;
    std::string ended_by;
    parsed.body = Body({}, &ended_by);
    parsed.has_generation_blocks = has_generation_blocks_;
    if (in_.failed()) return absl::InvalidArgumentError(in_.error());
    return parsed;
  }

 private:
  using Names = std::vector<absl::string_view>;

  // Statements up to a tag of one of these names, which is taken up to (not
  // with) its arguments and its end. No names: up to the end of the template.
  std::vector<StmtPtr> Body(const Names& until, std::string* ended_by) {
    std::vector<StmtPtr> body;
    if (++depth_ > kMaxDepth) in_.Fail("blocks nested too deep");
    while (!in_.failed()) {
      const Token& token = in_.Peek();
      if (token.kind == Token::Kind::kEnd) {
        if (!until.empty()) {
          in_.Fail(
              absl::StrCat("the template ends before `", until.back(), "`"));
        }
        break;
      }
      StmtPtr stmt = Make(Stmt::Kind::kText);
      if (token.kind == Token::Kind::kText) {
        stmt->text = in_.Take().text;
      } else if (token.kind == Token::Kind::kPrintBegin) {
        in_.Take();
        stmt->kind = Stmt::Kind::kPrint;
        stmt->expr = in_.TupleOrExpression();
        in_.Expect(Token::Kind::kPrintEnd, "}}");
      } else {
        in_.Take();
        const std::string name = in_.ExpectName();
        bool ends = false;
        for (absl::string_view end : until) ends = ends || end == name;
        if (ends) {
          *ended_by = name;
          break;
        }
        Tag(name, stmt.get());
      }
      body.push_back(std::move(stmt));
    }
    --depth_;
    return body;
  }

  // A body that ends with {% name %}.
  std::vector<StmtPtr> BodyUntil(absl::string_view name) {
    std::string ended_by;
    std::vector<StmtPtr> body = Body({name}, &ended_by);
    EndTag();
    return body;
  }

  void EndTag() { in_.Expect(Token::Kind::kTagEnd, "%}"); }

  StmtPtr Make(Stmt::Kind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = in_.Peek().line;
    return stmt;
  }

  void Tag(const std::string& name, Stmt* stmt) {
    if (name == "if") {
      If(stmt);
    } else if (name == "for") {
      For(stmt);
    } else if (name == "set") {
      Set(stmt);
    } else if (name == "macro") {
      stmt->kind = Stmt::Kind::kMacro;
      stmt->text = in_.ExpectName();
      in_.ExpectOperator("(");
      stmt->parameters = Parameters();
      EndTag();
      stmt->body = BodyUntil("endmacro");
    } else if (name == "call") {
      stmt->kind = Stmt::Kind::kCall;
      if (in_.TakeOperator("(")) stmt->parameters = Parameters();
      stmt->expr = in_.Expression();
      if (!in_.failed() && stmt->expr->kind != Expr::Kind::kCall) {
        in_.Fail("`call` needs a call");
      }
      EndTag();
      stmt->body = BodyUntil("endcall");
    } else if (name == "filter") {
      stmt->kind = Stmt::Kind::kFilter;
      stmt->filters = in_.FilterChain();
      EndTag();
      stmt->body = BodyUntil("endfilter");
    } else if (name == "with") {
      With(stmt);
    } else if (name == "generation") {
      stmt->kind = Stmt::Kind::kGeneration;
      has_generation_blocks_ = true;
      EndTag();
      stmt->body = BodyUntil("endgeneration");
    } else if (name == "break" || name == "continue") {
      stmt->kind = name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
      if (loops_ == 0) in_.Fail(absl::StrCat("`", name, "` outside of a loop"));
      EndTag();
    } else {
      in_.Fail(absl::StrCat("tag `", name, "` is not supported here"));
    }
  }

  void If(Stmt* stmt) {
    if (++depth_ > kMaxDepth) return in_.Fail("too many elif branches");
    stmt->kind = Stmt::Kind::kIf;
    stmt->expr = in_.TupleOrExpression();
    EndTag();
    std::string ended_by;
    stmt->body = Body({"elif", "else", "endif"}, &ended_by);
    if (ended_by == "elif") {
      StmtPtr nested = Make(Stmt::Kind::kIf);
      If(nested.get());
      stmt->otherwise.push_back(std::move(nested));
    } else {
      if (ended_by == "else") {
        EndTag();
        stmt->otherwise = Body({"endif"}, &ended_by);
      }
      EndTag();
    }
    --depth_;
  }

  void For(Stmt* stmt) {
    stmt->kind = Stmt::Kind::kFor;
    stmt->target = in_.TargetList();
    if (!in_.TakeName("in")) return in_.Fail("expected `in`");
    // `if` is the loop's filter here, not a conditional expression.
    stmt->expr = in_.ExpressionNoTernary();
    if (in_.TakeOperator(",")) {
      return in_.Fail("a loop over a bare tuple needs parentheses");
    }
    if (in_.TakeName("if")) stmt->condition = in_.Expression();
    if (in_.IsName("recursive")) {
      return in_.Fail("recursive loops are not supported");
    }
    EndTag();
    std::string ended_by;
    ++loops_;
    stmt->body = Body({"else", "endfor"}, &ended_by);
    --loops_;
    if (ended_by == "else") {
      EndTag();
      stmt->otherwise = Body({"endfor"}, &ended_by);
    }
    EndTag();
  }

  void Set(Stmt* stmt) {
    stmt->target = in_.TargetList();
    if (in_.TakeOperator("=")) {
      stmt->kind = Stmt::Kind::kSet;
      stmt->expr = in_.TupleOrExpression();
      EndTag();
      return;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    if (in_.TakeOperator("|")) stmt->filters = in_.FilterChain();
    EndTag();
    stmt->body = BodyUntil("endset");
  }

  void With(Stmt* stmt) {
    stmt->kind = Stmt::Kind::kWith;
    while (!in_.failed() && in_.Peek().kind == Token::Kind::kName) {
      stmt->targets.push_back(in_.TargetList());
      in_.ExpectOperator("=");
      stmt->values.push_back(in_.Expression());
      if (!in_.TakeOperator(",")) break;
    }
    EndTag();
    stmt->body = BodyUntil("endwith");
  }

  // Behind '(', through ')'.
  std::vector<Parameter> Parameters() {
    std::vector<Parameter> parameters;
    while (!in_.failed() && !in_.IsOperator(")")) {
      Parameter& parameter = parameters.emplace_back();
      parameter.name = in_.ExpectName();
      if (in_.TakeOperator("=")) parameter.fallback = in_.Expression();
      if (!in_.TakeOperator(",")) break;
    }
    in_.ExpectOperator(")");
    return parameters;
  }

  ExpressionParser in_;
  int depth_ = 0;
  int loops_ = 0;
  bool has_generation_blocks_ = false;
};

}  // namespace

absl::StatusOr<ParsedTemplate> ParseTemplate(absl::string_view source) {
  CADRE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace cadre::jinja
