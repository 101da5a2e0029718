#ifndef CADRE_COORDINATOR_FILTER_H_
#define CADRE_COORDINATOR_FILTER_H_

// Filters of list calls: comparisons joined by AND, for example
//   state = RUNNING AND priority >= 50 AND label.team = "nlp"
// Pure; thread-safe.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::coordinator {

class Filter {
 public:
  // What a list can be filtered by. A text field takes = and != only; a name
  // that ends with '.' stands for all names with more behind it.
  struct Fields {
    std::vector<std::string> text;
    // Fields with an order, and how a value of theirs is read; nullopt: it is
    // none.
    using Read = std::function<std::optional<int64_t>(const std::string&)>;
    std::map<std::string, Read> ordered;
    std::string all;  // for messages: "state, owner, label.KEY"
  };
  // FILTER_INVALID with the column of the problem.
  static absl::StatusOr<Filter> Parse(absl::string_view text,
                                      const Fields& fields);

  bool Matches(
      const std::function<std::string(const std::string& field)>& text,
      const std::function<int64_t(const std::string& field)>& number) const;

 private:
  enum class Op { kEq, kNe, kLt, kLe, kGt, kGe };
  struct Term {
    std::string field;
    Op op = Op::kEq;
    std::string value;
    std::optional<int64_t> number;  // of an ordered field
  };
  static bool Compare(int order, Op op);

  std::vector<Term> terms_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_FILTER_H_
