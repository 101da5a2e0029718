#ifndef CADRE_PLAN_CHECKER_H_
#define CADRE_PLAN_CHECKER_H_

// Internal to plan/validate: collects findings and knows the usual checks. Not
// thread-safe.

#include <algorithm>
#include <initializer_list>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "cadre/v1/diagnostics.pb.h"
#include "plan/validate.h"

namespace cadre {

// Collects findings; each check names the field, the value and the limit.
class Checker {
 public:
  explicit Checker(v1::Diagnostics* out) : out_(out) {}

  void Error(const std::string& field, const std::string& message,
             const std::string& hint = "") {
    Add(v1::Diagnostic::SEVERITY_ERROR, field, message, hint);
  }
  void Warn(const std::string& field, const std::string& message) {
    Add(v1::Diagnostic::SEVERITY_WARNING, field, message, "");
  }
  template <typename T>
  void Range(const std::string& field, T value, T low, T high) {
    if (value >= low && value <= high) return;
    Error(field, absl::StrCat(value, " is outside ", low, " - ", high));
  }
  // low < value <= high.
  void Above(const std::string& field, double value, double low, double high) {
    if (value > low && value <= high) return;
    Error(field,
          absl::StrCat(value, " must be above ", low, " and at most ", high));
  }
  // 0 <= value < 1.
  void BelowOne(const std::string& field, double value) {
    if (value >= 0 && value < 1) return;
    Error(field, absl::StrCat(value, " must be at least 0 and below 1"));
  }
  void OneOf(const std::string& field, const std::string& value,
             std::initializer_list<const char*> choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) {
      return;
    }
    Error(field, absl::StrCat("'", value, "' is not one of ",
                              absl::StrJoin(choices, ", ")));
  }
  void Duration(const std::string& field, const std::string& value,
                absl::Duration least) {
    absl::Duration duration;
    if (!absl::ParseDuration(value, &duration)) {
      Error(field, absl::StrCat("'", value, "' is not a duration"),
            "write for example 90s, 15m or 36h");
    } else if (duration < least) {
      Error(field,
            absl::StrCat(value, " is below ", absl::FormatDuration(least)));
    }
  }
  void Path(const std::string& field, const std::string& path,
            const ValidateOptions& options) {
    if (path.empty()) return;
    if (path[0] != '/') {
      Error(field,
            absl::StrCat("'", path, "' is relative, and the request names no ",
                         "folder to start from"),
            "write an absolute path");
      return;
    }
    for (absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") {
        Error(field, absl::StrCat("'", path, "' contains '..'"),
              "write the path without it");
        return;
      }
    }
    const auto below = [&path](const std::string& root) {
      return path == root || absl::StartsWith(path, absl::StrCat(root, "/"));
    };
    if (!options.allowed_roots.empty() &&
        std::none_of(options.allowed_roots.begin(), options.allowed_roots.end(),
                     below)) {
      Error(field, absl::StrCat("'", path, "' is outside the folders that the ",
                                "coordinator allows: ",
                                absl::StrJoin(options.allowed_roots, ", ")));
    }
  }

 private:
  void Add(v1::Diagnostic::Severity severity, const std::string& field,
           const std::string& message, const std::string& hint) {
    v1::Diagnostic* item = out_->add_items();
    item->set_severity(severity);
    item->set_field(field);
    item->set_message(message);
    item->set_hint(hint);
    out_->set_total(out_->total() + 1);
  }
  v1::Diagnostics* const out_;
};

// limits.cc: every field by itself. `sent` is the spec without defaults.
void CheckLimits(const v1::JobSpec& spec, const v1::JobSpec& sent,
                 const ValidateOptions& options, Checker& check);

}  // namespace cadre

#endif  // CADRE_PLAN_CHECKER_H_
