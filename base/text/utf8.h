#ifndef CADRE_BASE_TEXT_UTF8_H_
#define CADRE_BASE_TEXT_UTF8_H_

// UTF-8 helpers: pure functions.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Byte offset of the first sequence that is not well-formed UTF-8 (overlong
// forms, surrogates and values above U+10FFFF are not), or -1.
int64_t FindInvalidUtf8(absl::string_view text);

// Reads the code point at *pos of well-formed text and moves *pos behind it.
uint32_t NextCodePoint(absl::string_view text, int64_t* pos);

void AppendUtf8(uint32_t code_point, std::string* out);

// Malformed parts become U+FFFD, one for each maximal prefix of a sequence (as
// Unicode recommends and Python and Rust do).
std::string ReplaceInvalidUtf8(absl::string_view text);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_UTF8_H_
