#ifndef CADRE_TESTS_GPU_STAGED_COMMUNICATOR_H_
#define CADRE_TESTS_GPU_STAGED_COMMUNICATOR_H_

// Ranks that share one GPU: NCCL refuses two of them on a device, so that their
// collectives go through host memory, by threads of this process. What is
// around a communicator on a GPU can then be tested with a single one.

#include <memory>
#include <vector>

#include "worker/comm/communicator.h"

namespace cadre::testing {

// A call waits for `stream` (a cudaStream_t; see OrderBehind), copies, and
// hands on to `host`.
std::unique_ptr<Communicator> StageOnHost(std::unique_ptr<Communicator> host,
                                          void* stream);

}  // namespace cadre::testing

#endif  // CADRE_TESTS_GPU_STAGED_COMMUNICATOR_H_
