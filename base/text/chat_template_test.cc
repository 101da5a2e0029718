#include "base/text/chat_template.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text/json.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Json> Messages(const std::string& json) {
  return ParseJson(json).value().items();
}

std::vector<std::string> Trained(const RenderedChat& chat) {
  std::vector<std::string> out;
  for (const TextSpan& span : chat.trained) {
    out.push_back(chat.text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

const std::vector<Json> kTwoTurns = Messages(R"([
    {"role": "system", "content": "S"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}])");
const std::vector<bool> kBoth = {false, false, true, false, true};
const std::vector<bool> kSecond = {false, false, false, false, true};

// Without generation blocks, as most models' templates are.
constexpr char kPlainChatMl[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(ChatTemplateTest, BuiltInIsChatMl) {
  const auto chat_ml = ChatTemplate::ChatMl();
  EXPECT_TRUE(chat_ml->is_builtin());
  ASSERT_OK_AND_ASSIGN(
      const std::string text,
      chat_ml->Render(Messages(R"([{"role": "user", "content": "hi"}])"),
                      {.add_generation_prompt = true}));
  EXPECT_EQ(text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_OK_AND_ASSIGN(const RenderedChat chat,
                       chat_ml->RenderForTraining(kTwoTurns, kBoth, nullptr));
  EXPECT_THAT(Trained(chat), ElementsAre("b<|im_end|>", "d<|im_end|>"));
  EXPECT_THAT(
      chat_ml->RenderForTraining(
          Messages(R"([{"role": "assistant", "content": null,
                        "tool_calls": [{"name": "f"}]}])"),
          {true}, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tool calls")));
}

TEST(ChatTemplateTest, DerivesTheAssistantsTextFromPrefixes) {
  ASSERT_OK_AND_ASSIGN(const auto plain,
                       ChatTemplate::FromSource(kPlainChatMl, {}));
  ASSERT_OK_AND_ASSIGN(const RenderedChat derived,
                       plain->RenderForTraining(kTwoTurns, kBoth, nullptr));
  ASSERT_OK_AND_ASSIGN(
      const RenderedChat marked,
      ChatTemplate::ChatMl()->RenderForTraining(kTwoTurns, kBoth, nullptr));
  EXPECT_EQ(derived.text, marked.text);
  EXPECT_EQ(derived.trained, marked.trained);
  ASSERT_OK_AND_ASSIGN(const RenderedChat second,
                       plain->RenderForTraining(kTwoTurns, kSecond, nullptr));
  EXPECT_THAT(Trained(second), ElementsAre("d<|im_end|>"));
}

TEST(ChatTemplateTest, KeepsALineEndThatIsTheOnlyEndOfATurn) {
  ASSERT_OK_AND_ASSIGN(
      const auto lines,
      ChatTemplate::FromSource(
          "{% for m in messages %}{{ m.role[0] ~ ':' ~ m.content ~ '\\n' }}"
          "{% endfor %}{% if add_generation_prompt %}a:{% endif %}",
          {}));
  ASSERT_OK_AND_ASSIGN(const RenderedChat chat,
                       lines->RenderForTraining(kTwoTurns, kBoth, nullptr));
  EXPECT_THAT(Trained(chat), ElementsAre("b\n", "d\n"));
}

TEST(ChatTemplateTest, AsksForGenerationBlocksWherePrefixesFail) {
  ASSERT_OK_AND_ASSIGN(
      const auto changing,
      ChatTemplate::FromSource(
          "{% for m in messages %}{{ m.role }}{% if loop.last %}[think]"
          "{% endif %}{{ m.content }}{% endfor %}"
          "{% if add_generation_prompt %}assistant{% endif %}",
          {}));
  EXPECT_THAT(changing->RenderForTraining(kTwoTurns, kBoth, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("{% generation %}")));
}

TEST(ChatTemplateTest, LoadsWhatTheModelDirectoryHolds) {
  const std::string dir = ::testing::TempDir() + "/chat_template";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  ASSERT_OK_AND_ASSIGN(auto loaded, ChatTemplate::Load(dir, {}));
  EXPECT_TRUE(loaded->is_builtin());
  std::ofstream(dir + "/tokenizer_config.json")
      << R"({"chat_template": [{"name": "rag", "template": "x"},
             {"name": "default", "template": "{{ bos_token }}d"}]})";
  ASSERT_OK_AND_ASSIGN(loaded, ChatTemplate::Load(dir, {.bos_text = "<s>"}));
  ASSERT_OK_AND_ASSIGN(std::string text, loaded->Render({}, {}));
  EXPECT_EQ(text, "<s>d");
  std::ofstream(dir + "/chat_template.jinja") << "j\n";
  ASSERT_OK_AND_ASSIGN(loaded, ChatTemplate::Load(dir, {}));
  ASSERT_OK_AND_ASSIGN(text, loaded->Render({}, {}));
  EXPECT_EQ(text, "j");
  std::ofstream(dir + "/chat_template.jinja") << "{% if %}";
  EXPECT_THAT(ChatTemplate::Load(dir, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("chat_template.jinja")));
}

}  // namespace
}  // namespace cadre
