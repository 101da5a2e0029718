#include "base/text/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/text/jinja/template.h"
#include "base/text/jinja/value.h"

namespace cadre {
namespace {

// What a model without a template of its own is trained on. The line end
// behind <|im_end|> is not the assistant's.
constexpr char kChatMl[] =
    "{%- if tools %}{{ raise_exception('the model directory has no chat "
    "template, and the built-in ChatML knows no tools') }}{% endif -%}"
    "{%- for m in messages -%}"
    "{%- if m.tool_calls %}{{ raise_exception('the model directory has no "
    "chat template, and the built-in ChatML knows no tool calls') }}"
    "{% endif -%}"
    "{{- '<|im_start|>' + m.role + '\\n' -}}"
    "{%- set text = m.content if m.content is string else "
    "m.content | map(attribute='text') | join -%}"
    "{%- if m.role == 'assistant' -%}"
    "{%- generation -%}{{- text + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- text + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- endif -%}";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  return contents.str();
}

// "chat_template" is a source, or a list of {"name", "template"} of which the
// one named default counts. Absent: "".
absl::StatusOr<std::string> TemplateOf(const Json& config) {
  const Json* value = config.Find("chat_template");
  if (value == nullptr || value->is_null()) return "";
  if (value->is_string()) return value->string_value();
  for (const Json& named : value->items()) {
    const Json* name = named.Find("name");
    const Json* source = named.Find("template");
    if (name != nullptr && name->string_value() == "default" &&
        source != nullptr) {
      return source->string_value();
    }
  }
  return absl::InvalidArgumentError(
      "`chat_template` is neither a string nor a list with one named "
      "`default`");
}

// The text of a message: its content, or the texts of its parts.
std::string ContentOf(const Json& message) {
  const Json* content = message.Find("content");
  if (content == nullptr) return "";
  std::string text = content->string_value();
  for (const Json& part : content->items()) {
    if (const Json* piece = part.Find("text")) text += piece->string_value();
  }
  return text;
}

// A turn that ends in a marker (<|im_end|>) is over there: white space behind
// it belongs to the layout. Without a marker it is what ends the turn.
int64_t EndOfTurn(absl::string_view text, int64_t begin, int64_t end,
                  const Json& message) {
  const std::string turn =
      jinja::Strip(text.substr(begin, end - begin), jinja::Side::kRight);
  const std::string content =
      jinja::Strip(ContentOf(message), jinja::Side::kBoth);
  if (turn.empty() || absl::EndsWith(turn, content)) {
    if (!content.empty() || turn.empty()) return end;
  }
  return begin + static_cast<int64_t>(turn.size());
}

absl::Status NeedsGenerationBlocks(int64_t message, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot tell which text of message ", message,
      " the assistant wrote: ", why,
      ". Put {% generation %} ... {% endgeneration %} around the assistant's "
      "text in the model's chat template, or train with loss_on: all"));
}

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Load(
    const std::string& model_dir, const SpecialTokens& special_tokens) {
  std::error_code ignored;
  std::string source, path = absl::StrCat(model_dir, "/chat_template.jinja");
  if (std::filesystem::exists(path, ignored)) {
    CADRE_ASSIGN_OR_RETURN(source, ReadFile(path));
  } else {
    for (absl::string_view name :
         {"chat_template.json", "tokenizer_config.json"}) {
      path = absl::StrCat(model_dir, "/", name);
      if (!std::filesystem::exists(path, ignored)) continue;
      CADRE_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(path));
      absl::StatusOr<std::string> found = TemplateOf(config);
      if (!found.ok()) return Annotate(found.status(), path);
      source = *std::move(found);
      if (!source.empty()) break;
    }
  }
  if (source.empty()) return ChatMl();
  auto result = FromSource(source, special_tokens);
  if (!result.ok()) return Annotate(result.status(), path);
  return result;
}

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::FromSource(
    absl::string_view source, const SpecialTokens& special_tokens) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  CADRE_ASSIGN_OR_RETURN(result->template_, jinja::Template::Parse(source));
  result->bos_ = special_tokens.bos_text;
  result->eos_ = special_tokens.eos_text;
  result->pad_ = special_tokens.pad_text;
  return result;
}

std::unique_ptr<const ChatTemplate> ChatTemplate::ChatMl() {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  auto parsed = jinja::Template::Parse(kChatMl);
  CADRE_CHECK(parsed.ok()) << parsed.status();
  result->template_ = *std::move(parsed);
  result->builtin_ = true;
  return result;
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderWithSpans(
    absl::Span<const Json> messages, const RenderOptions& options) const {
  std::vector<std::pair<std::string, Json>> variables;
  variables.emplace_back("messages",
                         Json::Array({messages.begin(), messages.end()}));
  variables.emplace_back("add_generation_prompt",
                         Json::Bool(options.add_generation_prompt));
  variables.emplace_back("tools",
                         options.tools == nullptr ? Json() : *options.tools);
  variables.emplace_back("documents", Json());
  const auto token = [&](const char* name, const std::string& text) {
    if (!text.empty()) variables.emplace_back(name, Json::String(text));
  };
  token("bos_token", bos_);
  token("eos_token", eos_);
  token("pad_token", pad_);
  absl::StatusOr<jinja::Rendered> rendered = template_->Render(variables);
  if (!rendered.ok()) {
    return Annotate(rendered.status(), "the chat template refuses the chat");
  }
  return RenderedChat{std::move(rendered->text),
                      std::move(rendered->generations)};
}

absl::StatusOr<std::string> ChatTemplate::Render(
    absl::Span<const Json> messages, const RenderOptions& options) const {
  CADRE_ASSIGN_OR_RETURN(RenderedChat rendered,
                         RenderWithSpans(messages, options));
  return std::move(rendered.text);
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderForTraining(
    absl::Span<const Json> messages, const std::vector<bool>& trained,
    const Json* tools) const {
  if (!template_->has_generation_blocks()) {
    return RenderByPrefixes(messages, trained, tools);
  }
  CADRE_ASSIGN_OR_RETURN(RenderedChat chat,
                         RenderWithSpans(messages, {.tools = tools}));
  std::vector<bool> wanted;  // one for each message of the assistant
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* role = messages[i].Find("role");
    if (role != nullptr && role->string_value() == "assistant") {
      wanted.push_back(trained[i]);
    }
  }
  if (std::all_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) {
    return chat;
  }
  if (chat.trained.size() != wanted.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the chat template printed ", chat.trained.size(),
        " generation blocks for ", wanted.size(),
        " messages of the assistant, so those that are not to be trained "
        "cannot be told apart. Give all of them weight 1, or use one "
        "generation block a message in the template"));
  }
  std::vector<TextSpan> kept;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) kept.push_back(chat.trained[i]);
  }
  chat.trained = std::move(kept);
  return chat;
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderByPrefixes(
    absl::Span<const Json> messages, const std::vector<bool>& trained,
    const Json* tools) const {
  RenderedChat chat;
  CADRE_ASSIGN_OR_RETURN(chat.text, Render(messages, {.tools = tools}));
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!trained[i]) continue;
    const int64_t number = static_cast<int64_t>(i) + 1;
    if (i == 0) {
      return NeedsGenerationBlocks(number, "the chat begins with it");
    }
    CADRE_ASSIGN_OR_RETURN(
        const std::string before,
        Render(messages.subspan(0, i),
               {.add_generation_prompt = true, .tools = tools}));
    CADRE_ASSIGN_OR_RETURN(
        const std::string after,
        Render(messages.subspan(0, i + 1), {.tools = tools}));
    if (!absl::StartsWith(after, before)) {
      return NeedsGenerationBlocks(
          number,
          "with the generation prompt, the chat before it is no prefix of the "
          "chat with it");
    }
    if (!absl::StartsWith(chat.text, after)) {
      return NeedsGenerationBlocks(
          number, "the template changes it when more messages follow");
    }
    const int64_t begin = static_cast<int64_t>(before.size());
    const int64_t end = EndOfTurn(
        chat.text, begin, static_cast<int64_t>(after.size()), messages[i]);
    if (begin < end) chat.trained.push_back({begin, end});
  }
  return chat;
}

}  // namespace cadre
