#ifndef CADRE_MODEL_PEFT_CONFIG_H_
#define CADRE_MODEL_PEFT_CONFIG_H_

// adapter_config.json of PEFT: the fields we implement, refusals for the rest.
// Immutable after parsing; thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// A Python regular expression as PEFT uses them, run by PCRE2.
class PeftRegex {
 public:
  static absl::StatusOr<PeftRegex> Create(absl::string_view pattern);
  // The whole text matches.
  bool FullMatch(absl::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

struct PeftConfig {
  int64_t rank = 8;
  double alpha = 8.0;
  bool rslora = false;
  double dropout = 0.0;
  // Last components or full paths; or one expression over the whole path.
  std::vector<std::string> target_modules;
  std::shared_ptr<const PeftRegex> target_modules_regex;
  std::vector<std::string> target_parameters;
  std::vector<std::pair<PeftRegex, int64_t>> rank_pattern;
  std::vector<std::pair<PeftRegex, double>> alpha_pattern;
  std::string peft_version;

  // INVALID_ARGUMENT names every field that we cannot honour.
  static absl::StatusOr<PeftConfig> Parse(absl::string_view json);

  bool TargetsModule(const std::string& path) const;
  // `path` ends in the parameter's name: "...mlp.experts.down_proj".
  bool TargetsParameter(const std::string& path) const;
  // The first pattern that matches wins.
  int64_t RankOf(const std::string& path) const;
  double AlphaOf(const std::string& path) const;
  // The fused expert layout of PEFT before 0.19 put A on the other side.
  bool HasFusedLayoutOfToday() const;
};

}  // namespace cadre

#endif  // CADRE_MODEL_PEFT_CONFIG_H_
