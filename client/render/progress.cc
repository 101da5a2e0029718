#include "client/render/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/render/table.h"

namespace cadre::client {
namespace {

const char* StateColor(cadre::v1::JobState state) {
  switch (state) {
    case cadre::v1::JOB_STATE_SUCCEEDED:
      return "32";
    case cadre::v1::JOB_STATE_FAILED:
      return "31";
    case cadre::v1::JOB_STATE_RUNNING:
    case cadre::v1::JOB_STATE_FINALIZING:
      return "36";
    default:
      return "33";
  }
}

std::string Bar(double share, int width) {
  const int full = static_cast<int>(
      std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
  return absl::StrCat("[", std::string(full, '#'),
                      std::string(width - full, '-'), "]");
}

}  // namespace

std::string StateName(cadre::v1::JobState state) {
  return std::string(
      absl::StripPrefix(cadre::v1::JobState_Name(state), "JOB_STATE_"));
}

bool IsTerminal(cadre::v1::JobState state) {
  return state == cadre::v1::JOB_STATE_SUCCEEDED ||
         state == cadre::v1::JOB_STATE_FAILED ||
         state == cadre::v1::JOB_STATE_CANCELLED;
}

std::string FormatSeconds(double seconds) {
  const int64_t s = std::llround(std::max(0.0, seconds));
  if (s >= 3600) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  if (s >= 60) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  return absl::StrFormat("%ds", s);
}

std::string FormatCount(double value) {
  static constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, unit] : kUnits) {
    if (value >= size) return absl::StrFormat("%.1f%s", value / size, unit);
  }
  return absl::StrFormat("%.0f", value);
}

std::string ProgressLine(cadre::v1::JobState state,
                         const cadre::v1::Progress& progress,
                         const cadre::v1::QueueReason& reason,
                         const Terminal& terminal) {
  const std::string name = StateName(state);
  std::string rest;
  if (progress.step() == 0 && !reason.code().empty() &&
      (state == cadre::v1::JOB_STATE_QUEUED ||
       state == cadre::v1::JOB_STATE_RECOVERING)) {
    rest = absl::StrCat("  ", reason.code(), ": ", reason.message());
  } else if (progress.total_steps() > 0) {
    rest = absl::StrCat("  ", progress.step(), "/", progress.total_steps());
    if (progress.step() > 0) {
      absl::StrAppendFormat(&rest, "  loss %.4f  grad %.3g", progress.loss(),
                            progress.grad_norm());
    }
    if (progress.expert_balancedness() > 0) {
      absl::StrAppendFormat(&rest, "  balance %.2f",
                            progress.expert_balancedness());
    }
    if (progress.tokens_per_second() > 0) {
      absl::StrAppend(&rest, "  ", FormatCount(progress.tokens_per_second()),
                      " tok/s");
    }
    if (progress.estimate_ready() && !IsTerminal(state)) {
      absl::StrAppend(&rest, "  eta ", FormatSeconds(progress.eta_seconds()));
    }
    const int room =
        terminal.width - static_cast<int>(name.size() + rest.size()) - 4;
    if (room >= 8) {
      const double share = static_cast<double>(progress.step()) /
                           static_cast<double>(progress.total_steps());
      rest = absl::StrCat(" ", Bar(share, std::min(room, 32)), rest);
    }
  }
  const int room = terminal.width - static_cast<int>(name.size());
  if (terminal.is_tty && DisplayWidth(rest) > room) {
    rest.resize(std::max(0, room));
  }
  return absl::StrCat(terminal.Style(StateColor(state), name), rest);
}

std::string EventLine(const cadre::v1::Event& event, const Terminal& terminal) {
  const absl::Time time = absl::FromUnixSeconds(event.time().seconds()) +
                          absl::Nanoseconds(event.time().nanos());
  std::string type = event.type();
  if (event.severity() == cadre::v1::Event::SEVERITY_ERROR) {
    type = terminal.Style("31", type);
  } else if (event.severity() == cadre::v1::Event::SEVERITY_WARN) {
    type = terminal.Style("33", type);
  } else {
    type = terminal.Style("1", type);
  }
  return absl::StrCat(absl::FormatTime("%H:%M:%S", time, absl::LocalTimeZone()),
                      "  ", type, event.message().empty() ? "" : "  ",
                      event.message());
}

}  // namespace cadre::client
