#ifndef CADRE_WORKER_SUPERVISOR_H_
#define CADRE_WORKER_SUPERVISOR_H_

// cadre-worker --per-device: one worker process a device of this host, started
// and started again by this one. For pods, where all GPUs of a node must be in
// one container: in containers of their own they cannot use CUDA IPC, and NCCL
// loses NVLink.

#include <signal.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/options.h"

namespace cadre {

// The command line of the worker of device `index`: `arguments` (without the
// program) less what is the supervisor's own, and its index, worker id and
// addresses made from those of `options`, whose ports count up with the index.
std::vector<std::string> ChildArguments(
    const std::vector<std::string>& arguments, const WorkerOptions& options,
    int index);

// Runs until all children have ended. SIGTERM and SIGINT (blocked by the
// caller, given in `signals`) go to the children; from then on none is started
// again. Children that end by themselves are started again after a pause that
// doubles from 1 s to 1 min, but not after the exit codes 0 and 78. Returns
// this process's exit code: 0, or the last child's that was not.
int RunSupervisor(const std::string& program,
                  const std::vector<std::string>& arguments,
                  const WorkerOptions& options, const sigset_t& signals);

}  // namespace cadre

#endif  // CADRE_WORKER_SUPERVISOR_H_
