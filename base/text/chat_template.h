#ifndef CADRE_BASE_TEXT_CHAT_TEMPLATE_H_
#define CADRE_BASE_TEXT_CHAT_TEMPLATE_H_

// Turns the messages of a chat into the text a model reads, and says which
// parts of it the assistant wrote. The model's own Jinja template runs in a
// sandbox with limits; a model without one gets ChatML. Immutable, thread-safe.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/json.h"
#include "base/text/special_tokens.h"
#include "base/text/text_span.h"

namespace cadre {

namespace jinja {
class Template;
}  // namespace jinja

struct RenderedChat {
  std::string text;
  // Parts the assistant wrote, in order, of the messages that are trained.
  std::vector<TextSpan> trained;
};

class ChatTemplate {
 public:
  // chat_template.jinja, else "chat_template" of tokenizer_config.json (a
  // string, or a list of named ones whose "default" is used), else ChatML.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Load(
      const std::string& model_dir, const SpecialTokens& special_tokens);
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> FromSource(
      absl::string_view source, const SpecialTokens& special_tokens);
  // <|im_start|>role\ncontent<|im_end|>\n for every message.
  static std::unique_ptr<const ChatTemplate> ChatMl();
  ~ChatTemplate();

  struct RenderOptions {
    bool add_generation_prompt = false;
    const Json* tools = nullptr;  // an array, or none
  };
  absl::StatusOr<std::string> Render(absl::Span<const Json> messages,
                                     const RenderOptions& options) const;

  // The whole chat with the spans of messages i where trained[i]. They come
  // from the template's {% generation %} blocks, or else from rendering each
  // prefix of the chat; where that cannot work (the template changes earlier
  // turns), FAILED_PRECONDITION asks for generation blocks.
  absl::StatusOr<RenderedChat> RenderForTraining(
      absl::Span<const Json> messages, const std::vector<bool>& trained,
      const Json* tools) const;

  bool is_builtin() const { return builtin_; }

 private:
  ChatTemplate();
  // `trained` holds every generation block.
  absl::StatusOr<RenderedChat> RenderWithSpans(
      absl::Span<const Json> messages, const RenderOptions& options) const;
  absl::StatusOr<RenderedChat> RenderByPrefixes(
      absl::Span<const Json> messages, const std::vector<bool>& trained,
      const Json* tools) const;

  bool builtin_ = false;
  std::unique_ptr<const jinja::Template> template_;
  std::string bos_, eos_, pad_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_CHAT_TEMPLATE_H_
