#ifndef CADRE_BASE_TEXT_TOKENIZER_H_
#define CADRE_BASE_TEXT_TOKENIZER_H_

// Byte-level BPE as a Hugging Face tokenizer.json describes it: added tokens,
// normalizer, pre-tokenizer, merges, ByteLevel decoder. A component that is not
// supported is refused by name when the file is loaded, never skipped.
// Immutable; all methods are thread-safe (the word cache locks by itself).
//
//   ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(model_dir));
//   ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode("Hello"));

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/text_span.h"

namespace cadre {

class Json;

struct Encoding {
  std::vector<int32_t> ids;
  // spans[i]: the bytes of the input that token i came from. Where the
  // normalizer changed the text, all of the changed stretch.
  std::vector<TextSpan> spans;
};

class Tokenizer {
 public:
  // Reads model_dir/tokenizer.json.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(
      const std::string& model_dir);
  // From the contents of a tokenizer.json.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> FromJson(
      absl::string_view tokenizer_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ids of the text as it stands: special tokens written in the text become
  // their ids, none is added in front or behind. Text that is not UTF-8 is
  // INVALID_ARGUMENT with the byte offset.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;
  absl::StatusOr<Encoding> EncodeWithSpans(absl::string_view text) const;

  struct DecodeOptions {
    bool skip_special_tokens = false;
  };
  // Bytes that form no UTF-8 become U+FFFD. Ids that no token has are
  // INVALID_ARGUMENT.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     const DecodeOptions& options) const;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const {
    return Decode(ids, DecodeOptions());
  }

  // Vocabulary entry (byte-level spelling) or added token of exactly that name.
  std::optional<int32_t> TokenToId(absl::string_view token) const;
  // Added tokens (a chat template's markers are such).
  bool IsAddedToken(int32_t id) const;
  // Largest id + 1.
  int64_t vocab_size() const;

 private:
  struct Impl;
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Build(
      const Json& json);
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_TOKENIZER_H_
