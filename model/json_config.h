#ifndef CADRE_MODEL_JSON_CONFIG_H_
#define CADRE_MODEL_JSON_CONFIG_H_

// Reading of a config.json: typed fields with aliases that must agree, defaults
// and ranges. Problems are collected, not returned one by one: a parser reads
// everything, uses neutral values where a field is wrong, and asks
// ConfigProblems once at the end. One thread; the Json must outlive it.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace cadre {

// Errors and warnings of one config.
struct ConfigProblems {
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
  // INVALID_ARGUMENT with all errors, or OK.
  absl::Status status() const;
};

class JsonConfig {
 public:
  using Names = std::initializer_list<const char*>;

  // `object` may be null: every field is then absent. `where` prefixes field
  // names in messages ("text_config.").
  JsonConfig(const Json* object, std::string where, ConfigProblems* problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  // The value under whichever of the names is present; two that differ are an
  // error. A null counts as absent.
  int64_t Int(Names names, int64_t fallback, int64_t min, int64_t max);
  std::optional<int64_t> OptionalInt(Names names, int64_t min, int64_t max);
  double Number(Names names, double fallback, double min, double max);
  std::optional<double> OptionalNumber(Names names, double min, double max);
  bool Bool(Names names, bool fallback);
  std::string String(Names names, const std::string& fallback);
  std::optional<std::vector<std::string>> Strings(const char* name);
  std::optional<std::vector<int64_t>> Ints(const char* name);
  JsonConfig Object(const char* name);

  // A size: 1 to 2^20.
  int64_t Size(Names names, int64_t fallback) {
    return Int(names, fallback, 1, int64_t{1} << 20);
  }

  // The field must be absent, null or this value.
  void RequireBool(const char* name, bool value, absl::string_view why);
  void RequireString(const char* name, absl::string_view value,
                     absl::string_view why);
  void RequireZero(const char* name, absl::string_view why);

  // Present and not null.
  bool Has(const char* name) const;
  // Present, perhaps null.
  bool Contains(const char* name) const;
  bool IsList(const char* name) const {
    return Contains(name) && object_->Find(name)->is_array();
  }
  bool present() const { return object_ != nullptr; }

  // Marks fields as known and without influence.
  void Ignore(Names names);
  // A field that nothing asked for, that is not neutral (null, false, 0, empty)
  // and not one of the usual bookkeeping fields becomes a warning.
  void WarnAboutUnused();

  void Error(absl::string_view field, absl::string_view what);
  void Warn(std::string what) {
    problems_->warnings.push_back(std::move(what));
  }
  ConfigProblems* problems() { return problems_; }

 private:
  // The value to use, or null; reports aliases that disagree.
  const Json* Find(Names names, const char** found);
  std::optional<double> ReadNumber(Names names, double min, double max);

  const Json* object_;
  std::string where_;
  ConfigProblems* problems_;
  std::set<std::string> used_;
};

}  // namespace cadre

#endif  // CADRE_MODEL_JSON_CONFIG_H_
