#include "base/text/encode.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// 1 where a token overlaps one of the spans (both in order). A token of no
// bytes counts where it stands inside.
std::vector<uint8_t> MaskOf(const Encoding& encoding,
                            const std::vector<TextSpan>& spans) {
  std::vector<uint8_t> mask(encoding.ids.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < encoding.spans.size(); ++i) {
    const TextSpan& token = encoding.spans[i];
    while (next < spans.size() && spans[next].end <= token.begin) ++next;
    if (next == spans.size()) break;
    mask[i] = spans[next].begin < token.end;
  }
  return mask;
}

}  // namespace

absl::StatusOr<LossOn> ParseLossOn(absl::string_view name) {
  if (name.empty() || name == "assistant") return LossOn::kAssistant;
  if (name == "completion") return LossOn::kCompletion;
  if (name == "all") return LossOn::kAll;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown loss_on `", name, "`; it is assistant, completion or all"));
}

absl::StatusOr<TooLong> ParseTooLong(absl::string_view name) {
  if (name.empty() || name == "truncate") return TooLong::kTruncate;
  if (name == "drop") return TooLong::kDrop;
  if (name == "error") return TooLong::kError;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown too_long `", name, "`; it is truncate, drop or error"));
}

int64_t EncodedSample::num_targets() const {
  if (trained.empty()) return 0;
  return std::count(trained.begin() + 1, trained.end(), 1);
}

TextEncoder::TextEncoder(std::unique_ptr<const Tokenizer> tokenizer,
                         SpecialTokens special_tokens,
                         std::unique_ptr<const ChatTemplate> chat_template)
    : tokenizer_(std::move(tokenizer)),
      special_tokens_(std::move(special_tokens)),
      chat_template_(std::move(chat_template)) {}

absl::StatusOr<std::unique_ptr<const TextEncoder>> TextEncoder::Load(
    const std::string& model_dir) {
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                         Tokenizer::Load(model_dir));
  CADRE_ASSIGN_OR_RETURN(SpecialTokens special_tokens,
                         FindSpecialTokens(model_dir, *tokenizer));
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<const ChatTemplate> chat_template,
                         ChatTemplate::Load(model_dir, special_tokens));
  return std::make_unique<const TextEncoder>(std::move(tokenizer),
                                             std::move(special_tokens),
                                             std::move(chat_template));
}

absl::StatusOr<EncodedSample> TextEncoder::EncodeWhole(const Record& record,
                                                       LossOn loss_on) const {
  EncodedSample sample;
  const auto append_eos = [&] {
    if (!special_tokens_.eos.has_value()) return;
    // A text that ends in the token already needs no second one.
    if (!sample.ids.empty() && sample.ids.back() == *special_tokens_.eos) {
      return;
    }
    sample.ids.push_back(*special_tokens_.eos);
    sample.trained.push_back(1);
  };
  // Chat templates print the begin token themselves.
  const auto encode_first =
      [&](const std::string& text) -> absl::StatusOr<std::vector<int32_t>> {
    CADRE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_->Encode(text));
    if (special_tokens_.add_bos && special_tokens_.bos.has_value() &&
        (ids.empty() || ids.front() != *special_tokens_.bos)) {
      ids.insert(ids.begin(), *special_tokens_.bos);
    }
    return ids;
  };
  switch (record.format) {
    case DataFormat::kText: {
      CADRE_ASSIGN_OR_RETURN(sample.ids, encode_first(record.text));
      sample.trained.assign(sample.ids.size(), 1);
      append_eos();
      break;
    }
    case DataFormat::kPromptCompletion: {
      // Apart, so that what is trained is what a server would have to produce
      // behind the tokens of the prompt.
      CADRE_ASSIGN_OR_RETURN(sample.ids, encode_first(record.prompt));
      CADRE_ASSIGN_OR_RETURN(const std::vector<int32_t> completion,
                             tokenizer_->Encode(record.completion));
      sample.trained.assign(sample.ids.size(), loss_on == LossOn::kAll);
      sample.ids.insert(sample.ids.end(), completion.begin(), completion.end());
      sample.trained.resize(sample.ids.size(), 1);
      append_eos();
      break;
    }
    case DataFormat::kChat: {
      const Json* tools = record.tools.has_value() ? &*record.tools : nullptr;
      if (loss_on == LossOn::kAll) {
        CADRE_ASSIGN_OR_RETURN(
            const std::string text,
            chat_template_->Render(record.messages, {.tools = tools}));
        CADRE_ASSIGN_OR_RETURN(sample.ids, tokenizer_->Encode(text));
        sample.trained.assign(sample.ids.size(), 1);
        break;
      }
      std::vector<bool> trained = record.trained;
      if (loss_on == LossOn::kCompletion) {
        const auto last = std::find(trained.rbegin(), trained.rend(), true);
        if (last != trained.rend()) {
          const auto keep = trained.rend() - last - 1;
          trained.assign(trained.size(), false);
          trained[keep] = true;
        }
      }
      CADRE_ASSIGN_OR_RETURN(
          const RenderedChat chat,
          chat_template_->RenderForTraining(record.messages, trained, tools));
      CADRE_ASSIGN_OR_RETURN(Encoding encoding,
                             tokenizer_->EncodeWithSpans(chat.text));
      sample.trained = MaskOf(encoding, chat.trained);
      sample.ids = std::move(encoding.ids);
      break;
    }
    case DataFormat::kAuto:
      return absl::InternalError("a record without a format");
  }
  sample.full_length = static_cast<int64_t>(sample.ids.size());
  return sample;
}

absl::StatusOr<EncodedSample> TextEncoder::Encode(
    const Record& record, const EncodeOptions& options) const {
  CADRE_ASSIGN_OR_RETURN(EncodedSample sample,
                         EncodeWhole(record, options.loss_on));
  if (sample.num_targets() == 0) {
    return absl::NotFoundError(absl::StrCat(
        "none of the record's ", sample.full_length,
        " tokens is trained (the first token never is); remove the record"));
  }
  if (sample.full_length <= options.max_seq_len) return sample;
  switch (options.too_long) {
    case TooLong::kError:
      return absl::OutOfRangeError(absl::StrCat(
          sample.full_length, " tokens, over max_seq_len ", options.max_seq_len,
          "; shorten the record, raise data.max_seq_len or set data.too_long "
          "to truncate or drop"));
    case TooLong::kDrop:
      sample.dropped = true;
      break;
    case TooLong::kTruncate:
      sample.truncated = true;
      sample.ids.resize(options.max_seq_len);
      sample.trained.resize(options.max_seq_len);
      sample.dropped = sample.num_targets() == 0;
      break;
  }
  return sample;
}

}  // namespace cadre
