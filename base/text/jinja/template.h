#ifndef CADRE_BASE_TEXT_JINJA_TEMPLATE_H_
#define CADRE_BASE_TEXT_JINJA_TEMPLATE_H_

// A Jinja template, as chat templates use them: the language of Jinja2's
// immutable sandbox with trim_blocks, lstrip_blocks, loop controls and
// {% generation %}. Templates come with models and are not trusted: they reach
// nothing outside their variables, and steps, output and nesting are limited.
// Not supported, and refused when parsed: include, import, extends, block,
// recursive loops, line statements. Immutable, thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"
#include "base/text/text_span.h"

namespace cadre::jinja {

struct Stmt;

struct Rendered {
  std::string text;
  // What {% generation %} blocks printed, in order.
  std::vector<TextSpan> generations;
};

struct Limits {
  int64_t steps = 20'000'000;
  int64_t output_bytes = int64_t{64} << 20;
};

class Template {
 public:
  static absl::StatusOr<std::unique_ptr<const Template>> Parse(
      absl::string_view source);
  ~Template();

  // INVALID_ARGUMENT: the template fails on these values (raise_exception
  // included). RESOURCE_EXHAUSTED: over a limit.
  absl::StatusOr<Rendered> Render(
      const std::vector<std::pair<std::string, Json>>& variables,
      const Limits& limits = {}) const;

  bool has_generation_blocks() const { return has_generation_blocks_; }

 private:
  Template();
  std::vector<std::unique_ptr<Stmt>> body_;
  bool has_generation_blocks_ = false;
};

}  // namespace cadre::jinja

#endif  // CADRE_BASE_TEXT_JINJA_TEMPLATE_H_
