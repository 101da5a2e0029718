#ifndef CADRE_BASE_FAILPOINT_H_
#define CADRE_BASE_FAILPOINT_H_

// Named places where a test can make the process die, to show what survives,
// or dawdle, so that a quick job lasts as long as what the test does to it.
// Inert unless the environment has, for example,
//   CADRE_FAILPOINTS="journal.after_commit=kill"        at the first pass
//   CADRE_FAILPOINTS="journal.before_commit=kill@3"     at the third pass
//   CADRE_FAILPOINTS="worker.step=slow:/tmp/slow"       half a second a pass,
//                                                       while that file is
//                                                       there
// (several are joined by ';'). Thread-safe; costs one atomic load when inert.

#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

// Kills the process with SIGKILL, or sleeps, if this point is armed.
void Failpoint(absl::string_view name);

// Replaces what is armed, for a forked child in a test.
void ArmFailpoints(const std::string& spec);

}  // namespace cadre

#endif  // CADRE_BASE_FAILPOINT_H_
