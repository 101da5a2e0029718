#ifndef CADRE_CLIENT_COMMANDS_WATCH_JOB_H_
#define CADRE_CLIENT_COMMANDS_WATCH_JOB_H_

#include <string>

#include "client/context.h"

namespace cadre::client {

struct WatchJobOptions {
  std::string job;
  int64_t after_sequence = 0;
  // Print each item as JSON on stdout (cadre watch --json); otherwise progress
  // goes to stdout as text, or to stderr where stdout is kept for JSON.
  bool json_items = false;
};

// Follows a job to its end: a live line on a terminal, one line per event and
// now and then one of progress elsewhere. Ctrl-C detaches without touching the
// job. Returns the exit code; `last` gets the job as it ended.
int WatchJob(const Context& context, const WatchJobOptions& options,
             cadre::v1::Job* last);

// What a person wants to know at the end: losses, time, where the result is.
std::string Summary(const cadre::v1::Job& job, const Terminal& terminal);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_COMMANDS_WATCH_JOB_H_
