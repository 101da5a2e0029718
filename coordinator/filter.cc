#include "coordinator/filter.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"

namespace cadre::coordinator {
namespace {

absl::Status FilterError(size_t column, const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "FILTER_INVALID",
               absl::StrCat("filter, column ", column + 1, ": ", message));
}

// Walks over the text; positions are byte offsets.
struct Scanner {
  absl::string_view text;
  size_t at = 0;

  void SkipSpace() {
    while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
  }
  absl::string_view Word() {
    const size_t begin = at;
    while (at < text.size() &&
           (absl::ascii_isalnum(text[at]) ||
            absl::StrContains("_-.:/+", absl::string_view(&text[at], 1)))) {
      ++at;
    }
    return text.substr(begin, at - begin);
  }
  absl::string_view Operator() {
    const size_t begin = at;
    while (at < text.size() && at - begin < 2 &&
           absl::StrContains("=!<>", absl::string_view(&text[at], 1))) {
      ++at;
    }
    return text.substr(begin, at - begin);
  }
};

bool IsText(const std::string& field, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&field](const auto& name) {
    return name.back() == '.'
               ? absl::StartsWith(field, name) && field.size() > name.size()
               : field == name;
  });
}

}  // namespace

bool Filter::Compare(int order, Op op) {
  switch (op) {
    case Op::kEq:
      return order == 0;
    case Op::kNe:
      return order != 0;
    case Op::kLt:
      return order < 0;
    case Op::kLe:
      return order <= 0;
    case Op::kGt:
      return order > 0;
    case Op::kGe:
      return order >= 0;
  }
  return false;
}

absl::StatusOr<Filter> Filter::Parse(absl::string_view text,
                                     const Fields& fields) {
  static const auto* const kOperators = new std::map<absl::string_view, Op>{
      {"=", Op::kEq},  {"!=", Op::kNe}, {"<", Op::kLt},
      {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  Filter filter;
  Scanner scan{text};
  scan.SkipSpace();
  while (scan.at < text.size()) {
    if (!filter.terms_.empty()) {
      const size_t begin = scan.at;
      if (scan.Word() != "AND") return FilterError(begin, "expected AND");
      scan.SkipSpace();
    }
    Term term;
    const size_t field_at = scan.at;
    term.field = std::string(scan.Word());
    const auto ordered = fields.ordered.find(term.field);
    if (ordered == fields.ordered.end() && !IsText(term.field, fields.text)) {
      return FilterError(field_at, absl::StrCat("unknown field '", term.field,
                                                "'; use ", fields.all));
    }
    scan.SkipSpace();
    const size_t op_at = scan.at;
    const auto op = kOperators->find(scan.Operator());
    if (op == kOperators->end()) {
      return FilterError(op_at, "expected =, !=, <, <=, > or >=");
    }
    term.op = op->second;
    scan.SkipSpace();
    const size_t value_at = scan.at;
    if (scan.at < text.size() && text[scan.at] == '"') {
      const size_t end = text.find('"', scan.at + 1);
      if (end == absl::string_view::npos) {
        return FilterError(value_at, "the quoted value does not end");
      }
      term.value = std::string(text.substr(scan.at + 1, end - scan.at - 1));
      scan.at = end + 1;
    } else {
      term.value = std::string(scan.Word());
      if (term.value.empty()) return FilterError(value_at, "expected a value");
    }
    if (ordered != fields.ordered.end()) {
      term.number = ordered->second(term.value);
      if (!term.number.has_value()) {
        return FilterError(
            value_at, absl::StrCat("'", term.value, "' is no ", term.field));
      }
    } else if (term.op != Op::kEq && term.op != Op::kNe) {
      return FilterError(op_at,
                         absl::StrCat(term.field, " takes = and != only"));
    }
    filter.terms_.push_back(std::move(term));
    scan.SkipSpace();
  }
  return filter;
}

bool Filter::Matches(
    const std::function<std::string(const std::string&)>& text,
    const std::function<int64_t(const std::string&)>& number) const {
  return std::all_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    if (!term.number.has_value()) {
      return Compare(text(term.field).compare(term.value), term.op);
    }
    const int64_t value = number(term.field);
    return Compare(value < *term.number   ? -1
                   : value > *term.number ? 1
                                          : 0,
                   term.op);
  });
}

}  // namespace cadre::coordinator
