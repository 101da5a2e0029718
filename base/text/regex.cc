#include "base/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// A line of data may be 16 MiB of one letter, which patterns that backtrack
// hold in full; beyond these bounds the text is refused, not crashed on.
constexpr size_t kJitStackBytes = size_t{64} << 20;
constexpr uint32_t kHeapLimitKib = 1 << 20;
constexpr uint32_t kMatchLimit = 400'000'000;

std::string ErrorText(int code) {
  unsigned char buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const {
    pcre2_match_context_free(context);
  }
};
struct JitStackDeleter {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
struct CompileContextDeleter {
  void operator()(pcre2_compile_context* context) const {
    pcre2_compile_context_free(context);
  }
};

// Grows on demand; one a thread, since a stack serves one match at a time.
pcre2_jit_stack* ThreadJitStack() {
  thread_local std::unique_ptr<pcre2_jit_stack, JitStackDeleter> stack(
      pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr));
  return stack.get();
}

}  // namespace

struct Regex::Impl {
  ~Impl() { pcre2_code_free(code); }
  std::string pattern;  // as given, for messages
  pcre2_code* code = nullptr;
};

Regex::Regex() : impl_(std::make_unique<Impl>()) {}
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<const Regex>> Regex::Create(
    absl::string_view pattern) {
  CADRE_ASSIGN_OR_RETURN(const std::string translated,
                         TranslateOniguruma(pattern));
  std::unique_ptr<pcre2_compile_context, CompileContextDeleter> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  std::unique_ptr<Regex> regex(new Regex());
  regex->impl_->pattern = std::string(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  regex->impl_->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, context.get());
  if (regex->impl_->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "regular expression `", pattern, "` does not compile: ",
        ErrorText(error), " at offset ", offset, " of `", translated, "`"));
  }
  // May be refused where a service must not map executable memory; matching
  // then runs in the interpreter.
  pcre2_jit_compile(regex->impl_->code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::StatusOr<std::unique_ptr<const Regex>> Regex::CreateLiteral(
    absl::string_view text) {
  std::string pattern;
  for (char c : text) {
    if (c == '\n') {
      pattern += "\\n";
      continue;
    }
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                       (c >= 'a' && c <= 'z') ||
                       static_cast<unsigned char>(c) >= 0x80 ||
                       static_cast<unsigned char>(c) < 0x20;
    if (!plain) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return Create(pattern);
}

absl::StatusOr<std::vector<TextSpan>> Regex::FindAll(
    absl::string_view text) const {
  std::vector<TextSpan> matches;
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, MatchContextDeleter> context(
      pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) {
    return absl::ResourceExhaustedError("no memory for a regular expression");
  }
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_jit_stack_assign(context.get(), nullptr, ThreadJitStack());
  // A word takes four to five bytes; growing by doubling copies all the more.
  matches.reserve(text.size() / 5 + 1);
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE size = text.size();
  for (PCRE2_SIZE pos = 0; pos < size;) {
    int rc = pcre2_match(impl_->code, subject, size, pos, PCRE2_NO_UTF_CHECK,
                         data.get(), context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(impl_->code, subject, size, pos,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                       context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "regular expression `", impl_->pattern, "` failed at byte ", pos,
          " of a text of ", size, " bytes: ", ErrorText(rc)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    if (bounds[1] > bounds[0]) {
      matches.push_back(
          {static_cast<int64_t>(bounds[0]), static_cast<int64_t>(bounds[1])});
      pos = bounds[1];
      continue;
    }
    // Nothing matched: go on behind the next character. (\K can even move the
    // start behind the end.)
    pos = std::max(pos, bounds[1]) + 1;
    while (pos < size &&
           (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) {
      ++pos;
    }
  }
  return matches;
}

}  // namespace cadre
