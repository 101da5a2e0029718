// libFuzzer's side: CADRE_FUZZ_TARGET names the parser (tests/fuzz/run.sh).

#include <cstdint>

#include "tests/fuzz/fuzz.h"

namespace {

cadre::fuzz::Target Chosen() {
  const char* name = std::getenv("CADRE_FUZZ_TARGET");
  const auto& targets = cadre::fuzz::Targets();
  const auto it = targets.find(name == nullptr ? "" : name);
  if (it != targets.end()) return it->second;
  std::fprintf(stderr, "CADRE_FUZZ_TARGET must be one of:");
  for (const auto& [known, target] : targets) {
    std::fprintf(stderr, " %s", known.c_str());
  }
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const cadre::fuzz::Target target = Chosen();
  target({reinterpret_cast<const char*>(data), size});
  return 0;
}
