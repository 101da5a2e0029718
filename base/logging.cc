#include "base/logging.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cadre {
namespace {

std::atomic<LogSeverity> min_severity{LogSeverity::kInfo};

const char* Name(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kInfo:
      return "INFO";
    case LogSeverity::kWarning:
      return "WARNING";
    case LogSeverity::kError:
      return "ERROR";
    case LogSeverity::kFatal:
      return "FATAL";
  }
  return "?";
}

}  // namespace

LogMessage::LogMessage(LogSeverity severity, const char* file, int line)
    : severity_(severity) {
  stream_ << absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(),
                              absl::UTCTimeZone())
          << ' ' << Name(severity) << ' ' << file << ':' << line << ' ';
}

LogMessage::~LogMessage() {
  if (severity_ >= min_severity.load(std::memory_order_relaxed)) {
    stream_ << '\n';
    const std::string text = stream_.str();
    // A failed write to stderr has nowhere to be reported.
    [[maybe_unused]] auto n = write(STDERR_FILENO, text.data(), text.size());
  }
  if (severity_ == LogSeverity::kFatal) std::abort();
}

void SetMinLogSeverity(LogSeverity severity) { min_severity = severity; }

}  // namespace cadre
