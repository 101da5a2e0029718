// The header of a safetensors file: accepted tensors lie in the file, apart.

#include "model/safetensors.h"

#include "model/safetensors_header.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(safetensors) {
  const int64_t bytes = static_cast<int64_t>(input.size());
  if (bytes < 8) return;
  const auto header = SafetensorsHeaderBytes({input.data(), size_t{8}}, bytes);
  if (!header.ok()) return;
  FUZZ_CHECK(*header >= 0 && *header <= bytes - 8);
  const int64_t data_bytes = bytes - 8 - *header;
  const auto parsed = ParseSafetensorsHeader(
      input.substr(8, static_cast<size_t>(*header)), data_bytes);
  if (!parsed.ok()) return;
  int64_t end = 0;
  for (const SafetensorInfo& tensor : parsed->tensors) {
    FUZZ_CHECK(tensor.begin >= end && tensor.begin <= tensor.end);
    FUZZ_CHECK(tensor.end - tensor.begin == tensor.num_bytes());
    end = tensor.end;
  }
  FUZZ_CHECK(end <= data_bytes);
  WriteSafetensorsHeader(parsed->tensors, parsed->metadata);
}

}  // namespace cadre
