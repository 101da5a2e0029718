#ifndef CADRE_BASE_TEXT_REGEX_H_
#define CADRE_BASE_TEXT_REGEX_H_

// Regular expressions as tokenizer.json writes them (Oniguruma's Ruby syntax),
// run by PCRE2. What the two spell or mean differently is rewritten: class
// intersections, \s, \w, \h, line anchors. Immutable and thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/text_span.h"

namespace cadre {

class Regex {
 public:
  static absl::StatusOr<std::unique_ptr<const Regex>> Create(
      absl::string_view pattern);
  // Matches the string itself.
  static absl::StatusOr<std::unique_ptr<const Regex>> CreateLiteral(
      absl::string_view text);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // All matches that are not empty, left to right, without overlap. The text
  // must be UTF-8. RESOURCE_EXHAUSTED when a match needs too much work.
  absl::StatusOr<std::vector<TextSpan>> FindAll(absl::string_view text) const;

 private:
  Regex();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The rewriting alone, for tests.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_REGEX_H_
