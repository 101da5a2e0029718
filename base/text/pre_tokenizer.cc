#include "base/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr int kMaxDepth = 8;

// What ByteLevel splits by when use_regex is set: contractions, letters,
// numbers and other signs (each with one space in front), white space.
constexpr char kByteLevelPattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

bool Flag(const Json& json, absl::string_view key, bool absent) {
  const Json* value = json.Find(key);
  return value == nullptr || !value->is_bool() ? absent : value->bool_value();
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const Json* json) {
  PreTokenizer pre_tokenizer;
  if (json != nullptr && !json->is_null()) {
    CADRE_RETURN_IF_ERROR(pre_tokenizer.Add(*json, 0));
  }
  if (!pre_tokenizer.byte_level_) {
    return absl::UnimplementedError(
        "the pre_tokenizer has no ByteLevel step; only byte-level tokenizers "
        "are supported");
  }
  return pre_tokenizer;
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::ParseBehavior(
    absl::string_view name) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return absl::UnimplementedError(
      absl::StrCat("pre_tokenizer Split: unknown behavior `", name, "`"));
}

absl::Status PreTokenizer::Add(const Json& json, int depth) {
  const Json* type = json.Find("type");
  const std::string name = type == nullptr ? "" : type->string_value();
  if (byte_level_) {
    return absl::UnimplementedError(
        absl::StrCat("pre_tokenizer `", name,
                     "` behind ByteLevel is not supported; ByteLevel must be "
                     "the last step"));
  }
  Step step;
  if (name == "Sequence" && depth < kMaxDepth) {
    const Json* parts = json.Find("pretokenizers");
    if (parts == nullptr || !parts->is_array()) {
      return absl::InvalidArgumentError(
          "pre_tokenizer Sequence has no array `pretokenizers`");
    }
    for (const Json& part : parts->items()) {
      CADRE_RETURN_IF_ERROR(Add(part, depth + 1));
    }
    return absl::OkStatus();
  }
  if (name == "ByteLevel") {
    byte_level_ = true;
    step.add_prefix_space = Flag(json, "add_prefix_space", true);
    if (Flag(json, "use_regex", true)) {
      CADRE_ASSIGN_OR_RETURN(step.pattern, Regex::Create(kByteLevelPattern));
    }
  } else if (name == "Digits") {
    CADRE_ASSIGN_OR_RETURN(step.pattern, Regex::Create("\\p{N}"));
    step.behavior = Flag(json, "individual_digits", false)
                        ? Behavior::kIsolated
                        : Behavior::kContiguous;
  } else if (name == "Split") {
    const Json* pattern = json.Find("pattern");
    const Json* regex = pattern == nullptr ? nullptr : pattern->Find("Regex");
    const Json* literal =
        pattern == nullptr ? nullptr : pattern->Find("String");
    if (regex == nullptr && literal == nullptr) {
      return absl::InvalidArgumentError(
          "pre_tokenizer Split has neither a String nor a Regex pattern");
    }
    CADRE_ASSIGN_OR_RETURN(step.pattern,
                           regex != nullptr
                               ? Regex::Create(regex->string_value())
                               : Regex::CreateLiteral(literal->string_value()));
    const Json* behavior = json.Find("behavior");
    CADRE_ASSIGN_OR_RETURN(
        step.behavior,
        ParseBehavior(behavior == nullptr ? "" : behavior->string_value()));
    step.invert = Flag(json, "invert", false);
  } else {
    return absl::UnimplementedError(absl::StrCat(
        "pre_tokenizer `", name,
        "` is not supported (supported: ByteLevel, Split, Digits, Sequence)"));
  }
  if (step.pattern == nullptr && !step.add_prefix_space) {
    return absl::OkStatus();  // ByteLevel behind a Split: nothing left to do
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::SplitPiece(const Step& step, absl::string_view text,
                                      const Word& piece,
                                      std::vector<Word>* out) {
  const int64_t length = piece.span.end - piece.span.begin;
  absl::string_view subject = text.substr(piece.span.begin, length);
  // A space that the text does not have can take part in the match.
  const bool space = piece.space || (step.add_prefix_space &&
                                     (subject.empty() || subject[0] != ' '));
  if (step.pattern == nullptr) {
    out->push_back({piece.span, space});
    return absl::OkStatus();
  }
  std::string with_space;
  if (space) {
    with_space = absl::StrCat(" ", subject);
    subject = with_space;
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<TextSpan> matches,
                         step.pattern->FindAll(subject));
  const int64_t size = static_cast<int64_t>(subject.size());
  const int64_t shift = piece.span.begin - (space ? 1 : 0);
  const auto emit = [&](TextSpan span) {
    const bool with = space && span.begin == 0;
    out->push_back(
        {{span.begin + shift + (with ? 1 : 0), span.end + shift}, with});
  };
  if (step.behavior == Behavior::kIsolated) {
    int64_t done = 0;
    for (const TextSpan& match : matches) {
      if (match.begin > done) emit({done, match.begin});
      emit(match);
      done = match.end;
    }
    if (size > done) emit({done, size});
    return absl::OkStatus();
  }
  struct Part {
    TextSpan span;
    bool match;
  };
  std::vector<Part> parts;
  int64_t done = 0;
  for (const TextSpan& match : matches) {
    if (match.begin > done) parts.push_back({{done, match.begin}, step.invert});
    parts.push_back({match, !step.invert});
    done = match.end;
  }
  if (size > done) parts.push_back({{done, size}, step.invert});

  for (size_t i = 0; i < parts.size();) {
    TextSpan span = parts[i].span;
    const bool match = parts[i].match;
    size_t next = i + 1;
    switch (step.behavior) {
      case Behavior::kIsolated:
        break;  // done above
      case Behavior::kRemoved:
        if (match) {
          i = next;
          continue;
        }
        break;
      case Behavior::kMergedWithPrevious:
        if (!match && next < parts.size() && parts[next].match) ++next;
        break;
      case Behavior::kMergedWithNext:
        if (match && next < parts.size() && !parts[next].match) ++next;
        break;
      case Behavior::kContiguous:
        while (next < parts.size() && parts[next].match == match) ++next;
        break;
    }
    span.end = parts[next - 1].span.end;
    emit(span);
    i = next;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Word>> PreTokenizer::Split(
    absl::string_view text) const {
  std::vector<Word> words;
  if (text.empty()) return words;
  words.push_back({{0, static_cast<int64_t>(text.size())}, false});
  for (const Step& step : steps_) {
    std::vector<Word> next;
    next.reserve(words.size());
    for (const Word& word : words) {
      CADRE_RETURN_IF_ERROR(SplitPiece(step, text, word, &next));
    }
    words = std::move(next);
  }
  return words;
}

}  // namespace cadre
