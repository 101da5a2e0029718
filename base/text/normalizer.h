#ifndef CADRE_BASE_TEXT_NORMALIZER_H_
#define CADRE_BASE_TEXT_NORMALIZER_H_

// The "normalizer" of a tokenizer.json: NFC, NFD, NFKC, NFKD, Replace, Prepend
// and Sequences of them. Immutable and thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "base/text/regex.h"
#include "base/text/text_span.h"

namespace cadre {

// Where each byte of a changed text came from: runs that cover the new text in
// order. In an exact run bytes correspond one to one.
class Alignment {
 public:
  // A text that did not change.
  explicit Alignment(int64_t size);
  Alignment() = default;

  // Appends the next stretch of the new text.
  void AddExact(int64_t size, int64_t origin);
  void AddChanged(int64_t size, TextSpan origin);

  // The bytes of the original that [begin, end) of the new text came from.
  // begin < end.
  TextSpan Origin(int64_t begin, int64_t end) const;

  // The alignment of a text that was changed twice: `*this` from the original
  // to the middle, `next` from there.
  Alignment Then(const Alignment& next) const;

 private:
  struct Run {
    int64_t begin, end;  // in the new text
    TextSpan origin;
    bool exact;
  };
  const Run& RunAt(int64_t pos) const;
  std::vector<Run> runs_;
};

struct NormalizedText {
  std::string text;
  Alignment alignment;
};

class Normalizer {
 public:
  // null: nothing is done.
  static absl::StatusOr<Normalizer> FromJson(const Json* json);

  bool is_identity() const { return steps_.empty(); }
  // The text must be UTF-8.
  absl::StatusOr<NormalizedText> Normalize(absl::string_view text) const;

 private:
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kReplace, kPrepend };
  struct Step {
    Kind kind;
    std::shared_ptr<const Regex> pattern;  // kReplace
    std::string content;                   // kReplace, kPrepend
  };
  absl::Status Add(const Json& json, int depth);
  static absl::StatusOr<NormalizedText> Apply(const Step& step,
                                              absl::string_view text);
  std::vector<Step> steps_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_NORMALIZER_H_
