#ifndef CADRE_CLIENT_RENDER_PROGRESS_H_
#define CADRE_CLIENT_RENDER_PROGRESS_H_

// How a job and its events look to a person: one live line on a terminal, one
// line per event elsewhere. Pure functions of what the server sent.

#include <string>

#include "absl/strings/string_view.h"
#include "cadre/v1/job.pb.h"
#include "client/render/terminal.h"

namespace cadre::client {

// "RUNNING" for JOB_STATE_RUNNING.
std::string StateName(cadre::v1::JobState state);
bool IsTerminal(cadre::v1::JobState state);

// "1h02m", "3m20s", "45s".
std::string FormatSeconds(double seconds);
// "1.2M", "640", "3.4k".
std::string FormatCount(double value);

// "RUNNING [#######-----]  42/100  loss 2.731  grad 0.8  3.1k tok/s  eta 45s",
// fitted to the terminal; a queued job shows its reason instead of a bar.
std::string ProgressLine(cadre::v1::JobState state,
                         const cadre::v1::Progress& progress,
                         const cadre::v1::QueueReason& reason,
                         const Terminal& terminal);

// "12:03:04  CHECKPOINT_COMMITTED  step 20 ..."; local time of the reader.
std::string EventLine(const cadre::v1::Event& event, const Terminal& terminal);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_RENDER_PROGRESS_H_
