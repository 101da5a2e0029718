#ifndef CADRE_BASE_TEXT_BYTE_LEVEL_H_
#define CADRE_BASE_TEXT_BYTE_LEVEL_H_

// The byte-level alphabet of GPT-2: every byte is spelled as one printable
// character, so that vocabularies can be JSON. Pure functions.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// The bytes that a spelling stands for; nullopt where a character is not of the
// alphabet. The spelling must be UTF-8.
std::optional<std::string> FromByteLevel(absl::string_view spelling);

// The spelling of bytes.
std::string ToByteLevel(absl::string_view bytes);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_BYTE_LEVEL_H_
