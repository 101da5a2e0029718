// A chat template and its evaluation.

#include "base/text/chat_template.h"

#include <vector>

#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(chat_template) {
  SpecialTokens tokens;
  tokens.bos_text = "<s>";
  tokens.eos_text = "</s>";
  const auto chat = ChatTemplate::FromSource(input, tokens);
  if (!chat.ok()) return;
  static const auto* messages = new std::vector<Json>(
      ParseJson(R"([{"role": "system", "content": "Be kind."},
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "Hi!",
                     "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}])")
          .value()
          .items());
  const auto whole = (*chat)->Render(*messages, {});
  const auto parts =
      (*chat)->RenderForTraining(*messages, {false, false, true}, nullptr);
  if (!whole.ok() || !parts.ok()) return;
  for (const TextSpan& span : parts->trained) {
    FUZZ_CHECK(span.begin >= 0 && span.begin <= span.end);
    FUZZ_CHECK(span.end <= static_cast<int64_t>(parts->text.size()));
  }
}

}  // namespace cadre
