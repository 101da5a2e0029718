#include "client/render/diagnostics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::client {
namespace {

// "train" of "data.train[0]".
absl::string_view LastName(absl::string_view field) {
  const size_t dot = field.rfind('.');
  if (dot != absl::string_view::npos) field.remove_prefix(dot + 1);
  return field.substr(0, field.find('['));
}

}  // namespace

std::string RenderDiagnostics(const cadre::v1::Diagnostics& diagnostics,
                              absl::string_view job_file,
                              absl::string_view job_text,
                              const Terminal& terminal) {
  const std::vector<std::string> lines = absl::StrSplit(job_text, '\n');
  std::string out;
  for (const auto& item : diagnostics.items()) {
    const bool in_job = item.file().empty();
    std::string place(in_job ? job_file : absl::string_view(item.file()));
    if (item.line() > 0) absl::StrAppend(&place, ":", item.line());
    if (item.column() > 0) absl::StrAppend(&place, ":", item.column());
    const bool warning =
        item.severity() == cadre::v1::Diagnostic::SEVERITY_WARNING;
    std::string message = item.message();
    // The place may be that of an enclosing field, or none at all.
    if (in_job && !item.field().empty() &&
        !absl::StrContains(message, LastName(item.field()))) {
      message = absl::StrCat(item.field(), ": ", message);
    }
    absl::StrAppend(&out, terminal.Style("1", place), ": ",
                    warning ? terminal.Style("33", "warning: ")
                            : terminal.Style("31", "error: "),
                    message, "\n");
    if (!item.hint().empty()) absl::StrAppend(&out, "    ", item.hint(), "\n");
    if (in_job && item.line() > 0 && !job_text.empty() &&
        item.line() <= static_cast<int>(lines.size())) {
      absl::StrAppend(&out, "    ", lines[item.line() - 1], "\n    ",
                      std::string(std::max(0, item.column() - 1), ' '),
                      terminal.Style("32", "^"), "\n");
    }
  }
  if (diagnostics.total() > diagnostics.items_size()) {
    absl::StrAppend(&out, "... and ",
                    diagnostics.total() - diagnostics.items_size(), " more\n");
  }
  return out;
}

}  // namespace cadre::client
