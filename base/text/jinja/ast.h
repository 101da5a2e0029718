#ifndef CADRE_BASE_TEXT_JINJA_AST_H_
#define CADRE_BASE_TEXT_JINJA_AST_H_

// The syntax tree of a template. Plain data, immutable once parsed.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/jinja/value.h"

namespace cadre::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using StmtPtr = std::unique_ptr<Stmt>;

struct Argument {
  std::string name;  // "": by position
  ExprPtr value;
};

struct Expr {
  enum class Kind {
    kConstant,   // constant
    kName,       // text
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value, ...
    kAttribute,  // children[0] . text
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ],
                 // each bound may be null
    kCall,       // children[0] ( arguments )
    kFilter,     // children[0] | text ( arguments ); no child in filter blocks
    kTest,       // children[0] is text ( arguments )
    kNot,        // children[0]
    kUnary,      // text ("-" or "+") children[0]
    kBinary,     // children[0] text children[1]
    kCompare,    // children[0] then operators[i] children[i + 1]
    kAnd,        // children
    kOr,         // children
    kIf,         // children: condition, then, else (null: undefined)
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  Value constant;
  std::string text;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  std::vector<Argument> arguments;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: none
};

struct Stmt {
  enum class Kind {
    kText,        // text
    kPrint,       // expr
    kIf,          // expr, body, otherwise
    kFor,         // target in expr (if condition): body; otherwise
    kSet,         // target = expr
    kSetBlock,    // target = body (through filters)
    kMacro,       // name, parameters, body
    kCall,        // expr (a call) with caller = parameters, body
    kFilter,      // filters over body
    kWith,        // targets[i] = values[i]: body
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  ExprPtr target;  // kName, kTuple of names, or kAttribute of a name
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> values;
  std::vector<ExprPtr> filters;  // kFilter without a child, applied in order
  std::vector<Parameter> parameters;
  std::vector<StmtPtr> body;
  std::vector<StmtPtr> otherwise;
};

struct ParsedTemplate {
  std::vector<StmtPtr> body;
  bool has_generation_blocks = false;
};

absl::StatusOr<ParsedTemplate> ParseTemplate(absl::string_view source);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_AST_H_
