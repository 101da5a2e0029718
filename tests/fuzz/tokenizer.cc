// tokenizer.json: an accepted one encodes any text to ids that it can decode.

#include "base/text/tokenizer.h"

#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(tokenizer) {
  const auto tokenizer = Tokenizer::FromJson(input);
  if (!tokenizer.ok()) return;
  for (const char* text : {"", "The quick brown fox, 12345!\n",
                           "na\xC3\xAFve \xE4\xBD\xA0\xE5\xA5\xBD  \t x"}) {
    const auto encoding = (*tokenizer)->EncodeWithSpans(text);
    if (!encoding.ok()) continue;
    FUZZ_CHECK(encoding->ids.size() == encoding->spans.size());
    for (const int32_t id : encoding->ids) {
      FUZZ_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    }
    FUZZ_CHECK((*tokenizer)->Decode(encoding->ids).ok());
  }
}

}  // namespace cadre
