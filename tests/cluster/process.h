#ifndef CADRE_TESTS_CLUSTER_PROCESS_H_
#define CADRE_TESTS_CLUSTER_PROCESS_H_

// A child process of a test. Killed when the object goes, or when the test dies
// first. Not thread-safe.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre::testing {

class Process {
 public:
  // stdout and stderr go to the test's own, lines as they are.
  static absl::StatusOr<Process> Start(const std::vector<std::string>& command);
  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  void Signal(int signal);
  // Exit code, or 128 + signal.
  int Wait();
  // SIGKILL and Wait.
  void Kill();

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
};

}  // namespace cadre::testing

#endif  // CADRE_TESTS_CLUSTER_PROCESS_H_
