#ifndef CADRE_BASE_TEXT_PRE_TOKENIZER_H_
#define CADRE_BASE_TEXT_PRE_TOKENIZER_H_

// The "pre_tokenizer" of a tokenizer.json: cuts a text into the words that
// merges stay inside. Supported: Split, Digits, ByteLevel (which must be the
// last step: what follows works on bytes) and Sequences of them. Immutable and
// thread-safe.

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

// A word: bytes [begin, end) of the text, with a space in front that is not in
// the text where `space` is set.
struct Word {
  TextSpan span;
  bool space = false;
};

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> FromJson(const Json* json);

  absl::StatusOr<std::vector<Word>> Split(absl::string_view text) const;

 private:
  enum class Behavior {
    kIsolated,
    kRemoved,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous,
  };
  struct Step {
    std::shared_ptr<const Regex> pattern;  // null: no split
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;  // in front of each piece, before the split
  };
  absl::Status Add(const Json& json, int depth);
  static absl::StatusOr<Behavior> ParseBehavior(absl::string_view name);
  static absl::Status SplitPiece(const Step& step, absl::string_view text,
                                 const Word& piece, std::vector<Word>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_PRE_TOKENIZER_H_
