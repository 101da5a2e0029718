#ifndef CADRE_BASE_TEXT_ENCODE_H_
#define CADRE_BASE_TEXT_ENCODE_H_

// Record -> token ids with a loss mask: what both the dataset check and the
// training data loader use, so that what was counted is what is trained.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/chat_template.h"
#include "base/text/record.h"
#include "base/text/special_tokens.h"
#include "base/text/tokenizer.h"

namespace cadre {

// assistant: what the assistant wrote (prompt_completion: the completion).
// completion: of a chat only its last trained assistant message.
// all: every token. Records of plain text are always trained whole.
enum class LossOn { kAssistant, kCompletion, kAll };
enum class TooLong { kTruncate, kDrop, kError };

// Job-file spelling; "" is the default (assistant, truncate).
absl::StatusOr<LossOn> ParseLossOn(absl::string_view name);
absl::StatusOr<TooLong> ParseTooLong(absl::string_view name);

struct EncodeOptions {
  LossOn loss_on = LossOn::kAssistant;
  TooLong too_long = TooLong::kTruncate;
  int64_t max_seq_len = 4096;
};

struct EncodedSample {
  std::vector<int32_t> ids;
  // [ids.size()] 1 where the token itself is to be predicted. The first token
  // has nothing before it and is never counted.
  std::vector<uint8_t> trained;
  // Tokens before truncation.
  int64_t full_length = 0;
  bool truncated = false;
  // Do not train on it: longer than allowed, or nothing left to learn after
  // truncation.
  bool dropped = false;

  // Tokens that count in the loss.
  int64_t num_targets() const;
};

// A model directory's tokenizer, special tokens and chat template. Immutable
// and thread-safe.
class TextEncoder {
 public:
  static absl::StatusOr<std::unique_ptr<const TextEncoder>> Load(
      const std::string& model_dir);
  TextEncoder(std::unique_ptr<const Tokenizer> tokenizer,
              SpecialTokens special_tokens,
              std::unique_ptr<const ChatTemplate> chat_template);

  // Errors: OUT_OF_RANGE longer than max_seq_len under kError; NOT_FOUND no
  // trained token at all; INVALID_ARGUMENT the template refuses the messages;
  // FAILED_PRECONDITION the template does not tell what the assistant wrote.
  absl::StatusOr<EncodedSample> Encode(const Record& record,
                                       const EncodeOptions& options) const;

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const SpecialTokens& special_tokens() const { return special_tokens_; }
  const ChatTemplate& chat_template() const { return *chat_template_; }

 private:
  absl::StatusOr<EncodedSample> EncodeWhole(const Record& record,
                                            LossOn loss_on) const;

  std::unique_ptr<const Tokenizer> tokenizer_;
  SpecialTokens special_tokens_;
  std::unique_ptr<const ChatTemplate> chat_template_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_ENCODE_H_
