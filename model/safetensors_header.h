#ifndef CADRE_MODEL_SAFETENSORS_HEADER_H_
#define CADRE_MODEL_SAFETENSORS_HEADER_H_

// The JSON header of a safetensors file: the part that parses untrusted bytes.
// Pure functions.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/safetensors.h"

namespace cadre {

// Readers everywhere refuse longer headers.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Decodes and checks the length prefix of a file of `file_bytes`.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::Span<const char> prefix,
                                               int64_t file_bytes);

// The JSON text, padded with blanks so that the data starts at a multiple of 8.
std::string WriteSafetensorsHeader(
    const std::vector<SafetensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace cadre

#endif  // CADRE_MODEL_SAFETENSORS_HEADER_H_
