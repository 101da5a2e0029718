#ifndef CADRE_BASE_LOGGING_H_
#define CADRE_BASE_LOGGING_H_

// One line per event on stderr:
//   2026-11-30T05:21:02.123Z INFO worker/agent.cc:42 joined as worker host.0
//
//   CADRE_LOG(INFO) << "joined as worker " << id;
//   CADRE_CHECK(rank < size) << rank << " of " << size;   // our own promises
//
// Thread-safe: a line is written with one write call.

#include <sstream>

namespace cadre {

enum class LogSeverity { kInfo, kWarning, kError, kFatal };

class LogMessage {
 public:
  LogMessage(LogSeverity severity, const char* file, int line);
  ~LogMessage();  // writes the line; kFatal then aborts the process
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  LogSeverity severity_;
  std::ostringstream stream_;
};

// Lines below this severity are dropped. Set once in main, before threads.
void SetMinLogSeverity(LogSeverity severity);

}  // namespace cadre

#define CADRE_LOG_INFO ::cadre::LogSeverity::kInfo
#define CADRE_LOG_WARNING ::cadre::LogSeverity::kWarning
#define CADRE_LOG_ERROR ::cadre::LogSeverity::kError
#define CADRE_LOG(severity) \
  ::cadre::LogMessage(CADRE_LOG_##severity, __FILE__, __LINE__).stream()

#define CADRE_CHECK(condition)                                            \
  if (condition) {                                                        \
  } else /* NOLINT(readability-misleading-indentation) */                 \
    ::cadre::LogMessage(::cadre::LogSeverity::kFatal, __FILE__, __LINE__) \
            .stream()                                                     \
        << "check failed: " #condition " "

#endif  // CADRE_BASE_LOGGING_H_
