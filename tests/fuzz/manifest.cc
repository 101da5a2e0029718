// The manifest of a checkpoint: what was read is written the same.

#include "worker/checkpoint/manifest.h"

#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(manifest) {
  const auto manifest = CheckpointManifest::Parse(input);
  if (!manifest.ok()) return;
  for (const CheckpointFile& file : manifest->files) {
    FUZZ_CHECK(file.bytes >= 0);
    FUZZ_CHECK(!file.path.empty() && file.path != "..");
    FUZZ_CHECK(file.path.find('/') == std::string::npos);
  }
  const std::string text = manifest->ToJson();
  const auto again = CheckpointManifest::Parse(text);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->ToJson() == text);
}

}  // namespace cadre
