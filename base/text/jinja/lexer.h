#ifndef CADRE_BASE_TEXT_JINJA_LEXER_H_
#define CADRE_BASE_TEXT_JINJA_LEXER_H_

// Template source -> tokens. White space control (-, +, trim_blocks,
// lstrip_blocks), comments and raw blocks are dealt with here.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::jinja {

struct Token {
  enum class Kind {
    kText,        // outside of tags
    kPrintBegin,  // {{
    kPrintEnd,    // }}
    kTagBegin,    // {%
    kTagEnd,      // %}
    kName,
    kString,  // text: the value
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int64_t int_value = 0;
  double float_value = 0;
  int line = 1;
};

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_LEXER_H_
