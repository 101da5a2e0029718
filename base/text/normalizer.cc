#include "base/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

constexpr int kMaxDepth = 8;

absl::StatusOr<std::string> Map(absl::string_view text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  if (size < 0) {
    return absl::InternalError(absl::StrCat("cannot normalize ", text.size(),
                                            " bytes: ", utf8proc_errmsg(size)));
  }
  std::string result(reinterpret_cast<char*>(out), size);
  std::free(out);
  return result;
}

// Every character below U+0300 is its own NFC and combines with nothing in
// front of it; in UTF-8 those are the texts without a byte from 0xCC on.
bool BelowU0300(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0xCC;
  });
}

// True where canonical composition and ordering never reach across the front of
// this character.
bool StartsSegment(uint32_t code_point) {
  if (code_point >= 0x1160 && code_point <= 0x11FF) return false;  // Hangul
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return false;
    default:
      return true;
  }
}

absl::StatusOr<NormalizedText> MapCanonical(absl::string_view text,
                                            int options) {
  NormalizedText out;
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t begin = 0; begin < size;) {
    int64_t end = begin;
    NextCodePoint(text, &end);
    for (int64_t next = end; next < size; end = next) {
      if (StartsSegment(NextCodePoint(text, &next))) break;
    }
    const absl::string_view segment = text.substr(begin, end - begin);
    if (static_cast<unsigned char>(segment[0]) < 0x80 && segment.size() == 1) {
      out.text.push_back(segment[0]);
      out.alignment.AddExact(1, begin);
    } else {
      CADRE_ASSIGN_OR_RETURN(const std::string mapped, Map(segment, options));
      const int64_t length = static_cast<int64_t>(mapped.size());
      if (mapped == segment) {
        out.alignment.AddExact(length, begin);
      } else {
        out.alignment.AddChanged(length, {begin, end});
      }
      out.text += mapped;
    }
    begin = end;
  }
  return out;
}

// Compatibility forms can compose across any border: everything between the
// first and the last difference counts as changed.
absl::StatusOr<NormalizedText> MapCompatible(absl::string_view text,
                                             int options) {
  NormalizedText out;
  CADRE_ASSIGN_OR_RETURN(out.text, Map(text, options));
  const int64_t old_size = static_cast<int64_t>(text.size());
  const int64_t new_size = static_cast<int64_t>(out.text.size());
  const int64_t limit = std::min(old_size, new_size);
  int64_t front = 0;
  while (front < limit && text[front] == out.text[front]) ++front;
  int64_t back = 0;
  while (back < limit - front &&
         text[old_size - 1 - back] == out.text[new_size - 1 - back]) {
    ++back;
  }
  out.alignment.AddExact(front, 0);
  out.alignment.AddChanged(new_size - front - back, {front, old_size - back});
  out.alignment.AddExact(back, old_size - back);
  return out;
}

}  // namespace

Alignment::Alignment(int64_t size) { AddExact(size, 0); }

void Alignment::AddExact(int64_t size, int64_t origin) {
  if (size <= 0) return;
  if (!runs_.empty() && runs_.back().exact &&
      runs_.back().origin.end == origin) {
    runs_.back().end += size;
    runs_.back().origin.end += size;
    return;
  }
  const int64_t begin = runs_.empty() ? 0 : runs_.back().end;
  runs_.push_back({begin, begin + size, {origin, origin + size}, true});
}

void Alignment::AddChanged(int64_t size, TextSpan origin) {
  if (size <= 0) return;
  const int64_t begin = runs_.empty() ? 0 : runs_.back().end;
  runs_.push_back({begin, begin + size, origin, false});
}

const Alignment::Run& Alignment::RunAt(int64_t pos) const {
  return *(std::upper_bound(runs_.begin(), runs_.end(), pos,
                            [](int64_t value, const Run& run) {
                              return value < run.begin;
                            }) -
           1);
}

TextSpan Alignment::Origin(int64_t begin, int64_t end) const {
  const Run& first = RunAt(begin);
  const Run& last = RunAt(end - 1);
  return {
      first.exact ? first.origin.begin + (begin - first.begin)
                  : first.origin.begin,
      last.exact ? last.origin.begin + (end - last.begin) : last.origin.end};
}

Alignment Alignment::Then(const Alignment& next) const {
  Alignment out;
  for (const Run& run : next.runs_) {
    if (!run.exact) {
      TextSpan origin{0, 0};
      if (run.origin.begin < run.origin.end) {
        origin = Origin(run.origin.begin, run.origin.end);
      } else if (run.origin.begin > 0) {
        origin.begin = Origin(run.origin.begin - 1, run.origin.begin).end;
        origin.end = origin.begin;
      }
      out.AddChanged(run.end - run.begin, origin);
      continue;
    }
    for (int64_t pos = run.origin.begin; pos < run.origin.end;) {
      const Run& mine = RunAt(pos);
      const int64_t end = std::min(mine.end, run.origin.end);
      if (mine.exact) {
        out.AddExact(end - pos, mine.origin.begin + (pos - mine.begin));
      } else {
        out.AddChanged(end - pos, mine.origin);
      }
      pos = end;
    }
  }
  return out;
}

absl::StatusOr<Normalizer> Normalizer::FromJson(const Json* json) {
  Normalizer normalizer;
  if (json != nullptr && !json->is_null()) {
    CADRE_RETURN_IF_ERROR(normalizer.Add(*json, 0));
  }
  return normalizer;
}

absl::Status Normalizer::Add(const Json& json, int depth) {
  const Json* type = json.Find("type");
  const std::string name = type == nullptr ? "" : type->string_value();
  const auto text = [&](absl::string_view key) {
    const Json* value = json.Find(key);
    return value == nullptr ? std::string() : value->string_value();
  };
  if (name == "Sequence" && depth < kMaxDepth) {
    const Json* parts = json.Find("normalizers");
    if (parts == nullptr || !parts->is_array()) {
      return absl::InvalidArgumentError(
          "normalizer Sequence has no array `normalizers`");
    }
    for (const Json& part : parts->items()) {
      CADRE_RETURN_IF_ERROR(Add(part, depth + 1));
    }
  } else if (name == "NFC") {
    steps_.push_back({Kind::kNfc, nullptr, ""});
  } else if (name == "NFD") {
    steps_.push_back({Kind::kNfd, nullptr, ""});
  } else if (name == "NFKC") {
    steps_.push_back({Kind::kNfkc, nullptr, ""});
  } else if (name == "NFKD") {
    steps_.push_back({Kind::kNfkd, nullptr, ""});
  } else if (name == "Prepend") {
    steps_.push_back({Kind::kPrepend, nullptr, text("prepend")});
  } else if (name == "Replace") {
    const Json* pattern = json.Find("pattern");
    const Json* regex = pattern == nullptr ? nullptr : pattern->Find("Regex");
    const Json* literal =
        pattern == nullptr ? nullptr : pattern->Find("String");
    if (regex == nullptr && literal == nullptr) {
      return absl::InvalidArgumentError(
          "normalizer Replace has neither a String nor a Regex pattern");
    }
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<const Regex> compiled,
                           regex != nullptr
                               ? Regex::Create(regex->string_value())
                               : Regex::CreateLiteral(literal->string_value()));
    steps_.push_back({Kind::kReplace, std::move(compiled), text("content")});
  } else {
    return absl::UnimplementedError(absl::StrCat(
        "normalizer `", name,
        "` is not supported (supported: NFC, NFD, NFKC, NFKD, Prepend, "
        "Replace, Sequence)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NormalizedText> Normalizer::Apply(const Step& step,
                                                 absl::string_view text) {
  NormalizedText out;
  switch (step.kind) {
    case Kind::kNfc:
      return MapCanonical(text, UTF8PROC_COMPOSE);
    case Kind::kNfd:
      return MapCanonical(text, UTF8PROC_DECOMPOSE);
    case Kind::kNfkc:
      return MapCompatible(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Kind::kNfkd:
      return MapCompatible(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case Kind::kPrepend:
      if (!text.empty()) {
        out.text = step.content;
        out.alignment.AddChanged(static_cast<int64_t>(out.text.size()), {0, 0});
      }
      out.text.append(text.data(), text.size());
      out.alignment.AddExact(static_cast<int64_t>(text.size()), 0);
      return out;
    case Kind::kReplace:
      break;
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<TextSpan> matches,
                         step.pattern->FindAll(text));
  int64_t done = 0;
  const auto keep = [&](int64_t end) {
    out.text.append(text.data() + done, end - done);
    out.alignment.AddExact(end - done, done);
  };
  for (const TextSpan& match : matches) {
    keep(match.begin);
    out.text += step.content;
    out.alignment.AddChanged(static_cast<int64_t>(step.content.size()), match);
    done = match.end;
  }
  keep(static_cast<int64_t>(text.size()));
  return out;
}

absl::StatusOr<NormalizedText> Normalizer::Normalize(
    absl::string_view text) const {
  NormalizedText out{std::string(text),
                     Alignment(static_cast<int64_t>(text.size()))};
  for (const Step& step : steps_) {
    if (step.kind == Kind::kNfc) {
      if (BelowU0300(out.text)) continue;
      // Mostly nothing changes, and then the cheap look at the whole will do.
      CADRE_ASSIGN_OR_RETURN(const std::string whole,
                             Map(out.text, UTF8PROC_COMPOSE));
      if (whole == out.text) continue;
    }
    CADRE_ASSIGN_OR_RETURN(NormalizedText next, Apply(step, out.text));
    out.alignment = out.alignment.Then(next.alignment);
    out.text = std::move(next.text);
  }
  return out;
}

}  // namespace cadre
