// JSON text: what was read can be written and read again.

#include "base/text/json.h"

#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(json) {
  const JsonResult first = ParseJsonDetailed(input);
  if (!first.ok) {
    FUZZ_CHECK(first.error.offset >= 0);
    FUZZ_CHECK(first.error.offset <= static_cast<int64_t>(input.size()));
    return;
  }
  const std::string written = WriteJson(first.value);
  // A number too large is read as Python reads it, and no JSON any more.
  if (written.find("Infinity") != std::string::npos) return;
  const JsonResult second = ParseJsonDetailed(written);
  FUZZ_CHECK(second.ok);
  FUZZ_CHECK(WriteJson(second.value) == written);
}

}  // namespace cadre
