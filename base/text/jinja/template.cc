#include "base/text/jinja/template.h"

#include "base/status_macros.h"
#include "base/text/jinja/ast.h"
#include "base/text/jinja/evaluator.h"
#include "base/text/jinja/value.h"

namespace cadre::jinja {

Template::Template() = default;
Template::~Template() = default;

absl::StatusOr<std::unique_ptr<const Template>> Template::Parse(
    absl::string_view source) {
  CADRE_ASSIGN_OR_RETURN(ParsedTemplate parsed, ParseTemplate(source));
  std::unique_ptr<Template> result(new Template());
  result->body_ = std::move(parsed.body);
  result->has_generation_blocks_ = parsed.has_generation_blocks;
  return result;
}

absl::StatusOr<Rendered> Template::Render(
    const std::vector<std::pair<std::string, Json>>& variables,
    const Limits& limits) const {
  Evaluator evaluator(limits);
  for (const auto& [name, value] : variables) {
    evaluator.SetVariable(name, Value::FromJson(value));
  }
  return evaluator.Run(body_);
}

}  // namespace cadre::jinja
