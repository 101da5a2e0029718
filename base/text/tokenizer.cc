#include "base/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/added_tokens.h"
#include "base/text/bpe.h"
#include "base/text/byte_level.h"
#include "base/text/json.h"
#include "base/text/normalizer.h"
#include "base/text/pre_tokenizer.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

constexpr int kMaxDepth = 8;

// What may wrap or stand beside the byte-level decoder without changing bytes.
absl::Status CheckDecoder(const Json* decoder, int depth) {
  const Json* type = decoder == nullptr ? nullptr : decoder->Find("type");
  const std::string name = type == nullptr ? "none" : type->string_value();
  if (name == "ByteLevel" || name == "Fuse") return absl::OkStatus();
  const Json* parts = decoder == nullptr ? nullptr : decoder->Find("decoders");
  if (name == "Sequence" && depth < kMaxDepth && parts != nullptr) {
    for (const Json& part : parts->items()) {
      CADRE_RETURN_IF_ERROR(CheckDecoder(&part, depth + 1));
    }
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("decoder `", name, "` is not supported; only ByteLevel is"));
}

// Post-processors only add special tokens, which training never asks for.
absl::Status CheckPostProcessor(const Json* json, int depth) {
  if (json == nullptr || json->is_null()) return absl::OkStatus();
  const Json* type = json->Find("type");
  const std::string name = type == nullptr ? "" : type->string_value();
  if (name == "ByteLevel" || name == "TemplateProcessing" ||
      name == "RobertaProcessing" || name == "BertProcessing") {
    return absl::OkStatus();
  }
  const Json* parts = json->Find("processors");
  if (name == "Sequence" && depth < kMaxDepth && parts != nullptr) {
    for (const Json& part : parts->items()) {
      CADRE_RETURN_IF_ERROR(CheckPostProcessor(&part, depth + 1));
    }
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat("post_processor `", name, "` is not supported"));
}

}  // namespace

struct Tokenizer::Impl {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const Bpe> bpe;
  AddedTokenMatcher raw_tokens;
  AddedTokenMatcher normalized_tokens;
  std::vector<AddedToken> added;
  absl::flat_hash_map<std::string, int32_t> added_by_content;
  absl::flat_hash_map<int32_t, bool> special_by_id;  // of added tokens

  struct Decoded {
    bool known = false;
    std::string bytes;
  };
  std::vector<Decoded> decoded;

  absl::Status SetDecoded(int32_t id, const std::string& token);
  absl::Status EncodeRaw(absl::string_view text, int64_t offset,
                         Encoding* out) const;
  absl::Status EncodeNormalized(absl::string_view text,
                                const Alignment* alignment, int64_t begin,
                                int64_t offset, Encoding* out) const;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(
    const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/tokenizer.json");
  absl::StatusOr<Json> json = ReadJsonFile(path);
  if (absl::IsNotFound(json.status())) {
    return absl::NotFoundError(
        absl::StrCat("no tokenizer.json in ", model_dir,
                     "; other tokenizer files are not read. Convert the "
                     "tokenizer to the Hugging Face format and put it there"));
  }
  if (!json.ok()) return json.status();
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer = Build(*json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::FromJson(
    absl::string_view tokenizer_json) {
  CADRE_ASSIGN_OR_RETURN(const Json json, ParseJson(tokenizer_json));
  return Build(json);
}

absl::Status Tokenizer::Impl::SetDecoded(int32_t id, const std::string& token) {
  // Ids index a table; a stray huge one must not make it huge.
  constexpr int32_t kMaxVocabulary = 1 << 24;
  if (id >= kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token id ", id, " is over the limit of ", kMaxVocabulary - 1));
  }
  if (id >= static_cast<int64_t>(decoded.size())) decoded.resize(id + 1);
  std::optional<std::string> bytes = FromByteLevel(token);
  decoded[id] = {true, bytes.has_value() ? *std::move(bytes) : token};
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Build(
    const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tokenizer is an object, this is ", json.TypeName()));
  }
  auto impl = std::make_unique<Impl>();
  const Json* model = json.Find("model");
  if (model == nullptr) {
    return absl::InvalidArgumentError("the tokenizer has no `model`");
  }
  CADRE_ASSIGN_OR_RETURN(impl->bpe, Bpe::FromJson(*model));
  CADRE_ASSIGN_OR_RETURN(impl->normalizer,
                         Normalizer::FromJson(json.Find("normalizer")));
  CADRE_ASSIGN_OR_RETURN(impl->pre_tokenizer,
                         PreTokenizer::FromJson(json.Find("pre_tokenizer")));
  CADRE_RETURN_IF_ERROR(CheckPostProcessor(json.Find("post_processor"), 0));
  CADRE_RETURN_IF_ERROR(CheckDecoder(json.Find("decoder"), 0));
  CADRE_ASSIGN_OR_RETURN(impl->added,
                         ParseAddedTokens(json.Find("added_tokens")));
  for (const auto& [token, id] : impl->bpe->vocabulary()) {
    CADRE_RETURN_IF_ERROR(impl->SetDecoded(id, token));
  }
  std::vector<AddedToken> raw, normalized;
  for (const AddedToken& token : impl->added) {
    CADRE_RETURN_IF_ERROR(impl->SetDecoded(token.id, token.content));
    impl->added_by_content[token.content] = token.id;
    impl->special_by_id[token.id] = token.special;
    if (!token.normalized) {
      raw.push_back(token);
      continue;
    }
    AddedToken copy = token;
    CADRE_ASSIGN_OR_RETURN(NormalizedText content,
                           impl->normalizer.Normalize(token.content));
    copy.content = std::move(content.text);
    normalized.push_back(std::move(copy));
  }
  impl->raw_tokens = AddedTokenMatcher(std::move(raw));
  impl->normalized_tokens = AddedTokenMatcher(std::move(normalized));
  return std::unique_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

// `text` is the part of the input at `offset` between tokens matched raw.
absl::Status Tokenizer::Impl::EncodeRaw(absl::string_view text, int64_t offset,
                                        Encoding* out) const {
  NormalizedText normalized;
  const Alignment* alignment = nullptr;
  if (!normalizer.is_identity()) {
    CADRE_ASSIGN_OR_RETURN(normalized, normalizer.Normalize(text));
    if (normalized.text != text) {
      alignment = &normalized.alignment;
      text = normalized.text;
    }
  }
  for (const AddedTokenMatcher::Piece& piece : normalized_tokens.Split(text)) {
    const int64_t begin = piece.span.begin, end = piece.span.end;
    if (piece.id < 0) {
      CADRE_RETURN_IF_ERROR(EncodeNormalized(text.substr(begin, end - begin),
                                             alignment, begin, offset, out));
      continue;
    }
    const TextSpan origin =
        alignment == nullptr ? piece.span : alignment->Origin(begin, end);
    out->ids.push_back(piece.id);
    out->spans.push_back({origin.begin + offset, origin.end + offset});
  }
  return absl::OkStatus();
}

// `text` is free of added tokens and stands at `begin` of the normalized text
// that `alignment` (null: identical) maps to the input at `offset`.
absl::Status Tokenizer::Impl::EncodeNormalized(absl::string_view text,
                                               const Alignment* alignment,
                                               int64_t begin, int64_t offset,
                                               Encoding* out) const {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Word> words,
                         pre_tokenizer.Split(text));
  if (out->ids.empty()) {
    out->ids.reserve(words.size());
    out->spans.reserve(words.size());
  }
  std::vector<Bpe::Piece> pieces;
  std::string with_space;
  for (const Word& word : words) {
    absl::string_view bytes =
        text.substr(word.span.begin, word.span.end - word.span.begin);
    if (word.space) {
      with_space = absl::StrCat(" ", bytes);
      bytes = with_space;
    }
    pieces.clear();
    CADRE_RETURN_IF_ERROR(bpe->EncodeWord(bytes, &pieces));
    int64_t pos = word.span.begin - (word.space ? 1 : 0);
    for (const Bpe::Piece& piece : pieces) {
      const int64_t from = std::max(pos, word.span.begin);
      pos += piece.length;
      TextSpan span{begin + from, begin + std::max(pos, from)};
      if (alignment != nullptr && span.begin < span.end) {
        span = alignment->Origin(span.begin, span.end);
      }
      out->ids.push_back(piece.id);
      out->spans.push_back({span.begin + offset, span.end + offset});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Encoding> Tokenizer::EncodeWithSpans(
    absl::string_view text) const {
  if (const int64_t invalid = FindInvalidUtf8(text); invalid >= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot tokenize: byte ", invalid, " of the text is not UTF-8"));
  }
  Encoding out;
  for (const AddedTokenMatcher::Piece& piece : impl_->raw_tokens.Split(text)) {
    if (piece.id >= 0) {
      out.ids.push_back(piece.id);
      out.spans.push_back(piece.span);
      continue;
    }
    const int64_t begin = piece.span.begin;
    CADRE_RETURN_IF_ERROR(impl_->EncodeRaw(
        text.substr(begin, piece.span.end - begin), begin, &out));
  }
  return out;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(
    absl::string_view text) const {
  CADRE_ASSIGN_OR_RETURN(Encoding encoding, EncodeWithSpans(text));
  return std::move(encoding.ids);
}

absl::StatusOr<std::string> Tokenizer::Decode(
    absl::Span<const int32_t> ids, const DecodeOptions& options) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !impl_->decoded[id].known) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot decode: no token has id ", id,
                       " (vocabulary of ", vocab_size(), ")"));
    }
    if (options.skip_special_tokens) {
      const auto it = impl_->special_by_id.find(id);
      if (it != impl_->special_by_id.end() && it->second) continue;
    }
    bytes += impl_->decoded[id].bytes;
  }
  return ReplaceInvalidUtf8(bytes);
}

std::optional<int32_t> Tokenizer::TokenToId(absl::string_view token) const {
  const auto it = impl_->added_by_content.find(token);
  if (it != impl_->added_by_content.end()) return it->second;
  return impl_->bpe->TokenToId(token);
}

bool Tokenizer::IsAddedToken(int32_t id) const {
  return impl_->special_by_id.contains(id);
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->decoded.size());
}

}  // namespace cadre
