#ifndef CADRE_CLIENT_RENDER_DIAGNOSTICS_H_
#define CADRE_CLIENT_RENDER_DIAGNOSTICS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "cadre/v1/diagnostics.pb.h"
#include "client/render/terminal.h"

namespace cadre::client {

// Findings as a compiler prints them, one per paragraph:
//   job.yaml:14:3: unknown key "learning_rat"
//     did you mean "learning_rate"?
//       learning_rat: 1e-4
//       ^
// `job_file` names findings without a file of their own; `job_text` is its
// content, of which the line and a caret are shown ("" shows none).
std::string RenderDiagnostics(const cadre::v1::Diagnostics& diagnostics,
                              absl::string_view job_file,
                              absl::string_view job_text,
                              const Terminal& terminal);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_RENDER_DIAGNOSTICS_H_
