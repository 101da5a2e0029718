#include "base/text/jinja/template.h"

#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text/json.h"

namespace cadre::jinja {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Rendered> RenderSource(const std::string& source,
                                      const Json& variables,
                                      const Limits& limits = {}) {
  CADRE_ASSIGN_OR_RETURN(auto parsed, Template::Parse(source));
  std::vector<std::pair<std::string, Json>> list;
  for (const Json::Member& member : variables.members()) {
    list.emplace_back(member.key, member.value);
  }
  return parsed->Render(list, limits);
}

absl::StatusOr<Rendered> RenderSource(const std::string& source,
                                      const Limits& limits = {}) {
  return RenderSource(source, Json::Object({}), limits);
}

// cases.json holds what Jinja2 3.1's ImmutableSandboxedEnvironment prints, with
// the options and the tojson filter that Hugging Face sets.
TEST(TemplateTest, PrintsWhatJinja2Prints) {
  ASSERT_OK_AND_ASSIGN(const Json file,
                       ReadJsonFile("base/text/jinja/cases.json"));
  const Json& variables = *file.Find("variables");
  ASSERT_GT(file.Find("cases")->items().size(), 250);
  for (const Json& item : file.Find("cases")->items()) {
    const std::string& source = item.Find("t")->string_value();
    const auto rendered = RenderSource(source, variables);
    if (const Json* expected = item.Find("o")) {
      EXPECT_OK(rendered) << source;
      if (rendered.ok()) {
        EXPECT_EQ(rendered->text, expected->string_value()) << source;
      }
    } else {
      EXPECT_THAT(rendered, StatusIs(absl::StatusCode::kInvalidArgument))
          << source;
    }
  }
}

TEST(TemplateTest, ReproducesTheGoldenChats) {
  ASSERT_OK_AND_ASSIGN(
      const Json file,
      ReadJsonFile("tests/golden/tokenizers/chat_templates.json"));
  for (const Json& item : file.Find("rendered")->items()) {
    const Json& source =
        *file.Find("templates")->Find(item.Find("template")->string_value());
    std::vector<Json::Member> variables;
    variables.push_back(
        {"messages", file.Find("conversations")
                         ->items()[item.Find("conversation")->int_value()]});
    variables.push_back(
        {"add_generation_prompt", *item.Find("add_generation_prompt")});
    const auto rendered =
        RenderSource(source.string_value(), Json::Object(variables));
    if (const Json* text = item.Find("text")) {
      ASSERT_OK(rendered);
      EXPECT_EQ(rendered->text, text->string_value());
    } else {
      EXPECT_THAT(rendered, StatusIs(absl::StatusCode::kInvalidArgument));
    }
  }
}

TEST(TemplateTest, ReportsWhereGenerationBlocksPrinted) {
  ASSERT_OK_AND_ASSIGN(
      const Rendered rendered,
      RenderSource("a{% generation %}bc{% endgeneration %}"
                   "{% for i in [1, 2] %}-{% generation %}{{ i }}"
                   "{% endgeneration %}{% endfor %}"));
  EXPECT_EQ(rendered.text, "abc-1-2");
  EXPECT_THAT(rendered.generations,
              ElementsAre(TextSpan{1, 3}, TextSpan{4, 5}, TextSpan{6, 7}));
  EXPECT_THAT(RenderSource("{% macro m() %}{% generation %}x"
                           "{% endgeneration %}{% endmacro %}{{ m() }}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("macro")));
}

TEST(TemplateTest, NamesTheLineOfAFailure) {
  EXPECT_THAT(RenderSource("a\nb\n{{ none + 'x' }}"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("template line 3: unsupported operand")));
  EXPECT_THAT(
      RenderSource("\n{{ raise_exception('no tools here') }}"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tools here")));
}

TEST(TemplateTest, RefusesWhatItDoesNotSupport) {
  for (const char* source : {"{% include 'x' %}",
                             "{% extends 'x' %}",
                             "{% import 'x' as y %}",
                             "{% block b %}{% endblock %}",
                             "{% for x in y recursive %}{% endfor %}",
                             "{% break %}",
                             "{{",
                             "{% if %}{% endif %}",
                             "{% if a %}",
                             "{{ a b }}",
                             "{{ (a }}",
                             "{{ 'a }}",
                             "{# a",
                             "{% raw %}",
                             "{{ 1 + }}",
                             "{% endif %}",
                             "{% set 1 = 2 %}",
                             "{% call x %}{% endcall %}",
                             "{{ f(a=1, 2) }}",
                             "{{ f(*a) }}",
                             "{{ \xff }}"}) {
    EXPECT_THAT(Template::Parse(source),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << source;
  }
}

TEST(TemplateTest, StopsRunawayTemplates) {
  const Limits limits = {.steps = 200'000, .output_bytes = 10'000};
  for (const char* source :
       {"{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(9999) %}0123456789{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}"
        "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ 'a' * 999999999999 }}", "{{ [1] * 999999999999 }}",
        "{{ 'a' | indent(99999999999) }}", "{{ 'a'.zfill(99999999999) }}"}) {
    EXPECT_THAT(RenderSource(source, limits),
                StatusIs(absl::StatusCode::kResourceExhausted))
        << source;
  }
  EXPECT_FALSE(Template::Parse("{{ " + std::string(100000, '(')).ok());
  EXPECT_FALSE(Template::Parse("{{ " + std::string(100000, '-') + "1 }}").ok());
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += " + 1";
  EXPECT_FALSE(Template::Parse(chain + " }}").ok());
  std::string blocks;
  for (int i = 0; i < 10000; ++i) blocks += "{% if a %}";
  EXPECT_FALSE(Template::Parse(blocks).ok());
}

TEST(TemplateTest, SurvivesRandomTemplates) {
  const std::vector<std::string> pieces = {"{{",
                                           "}}",
                                           "{%",
                                           "%}",
                                           "{#",
                                           "#}",
                                           "-",
                                           " if ",
                                           " for ",
                                           " in ",
                                           " set ",
                                           " x ",
                                           " = ",
                                           "'a'",
                                           "1",
                                           "(",
                                           ")",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           "|",
                                           "trim",
                                           ".",
                                           ":",
                                           ",",
                                           "endif",
                                           "else",
                                           "endfor",
                                           "~",
                                           "not ",
                                           "is ",
                                           "\n",
                                           " text ",
                                           "range",
                                           "*",
                                           "**",
                                           "\xc3\xa9",
                                           "\\",
                                           "join",
                                           "loop",
                                           "macro",
                                           "raw",
                                           "//",
                                           "%",
                                           "none",
                                           "{{ x }}",
                                           "{% endif %}",
                                           "{% endfor %}",
                                           "{% if x %}",
                                           "{% for x in 'abc' %}"};
  std::mt19937 random(4);
  const Limits limits = {.steps = 20'000, .output_bytes = 10'000};
  for (int round = 0; round < 20000; ++round) {
    std::string source;
    for (int i = random() % 14; i >= 0; --i) {
      source += pieces[random() % pieces.size()];
    }
    (void)RenderSource(source, limits);
  }
  // Expressions are rarely whole by chance, so help.
  for (int round = 0; round < 20000; ++round) {
    std::string source = "{{ ";
    for (int i = random() % 8; i >= 0; --i) {
      source += pieces[13 + random() % 36];
    }
    (void)RenderSource(source + " }}", limits);
  }
}

}  // namespace
}  // namespace cadre::jinja
