#ifndef CADRE_WORKER_COMM_COUNTING_COMMUNICATOR_H_
#define CADRE_WORKER_COMM_COUNTING_COMMUNICATOR_H_

// Counts the calls of a communicator and of those split from it, so that
// another thread can tell a stalled rank from one that makes progress.

#include <atomic>
#include <cstdint>
#include <memory>

#include "worker/comm/communicator.h"

namespace cadre {

// `counter` grows by one when a call begins and by one when it ends; it must
// outlive the communicator and its splits.
std::unique_ptr<Communicator> CountCollectives(
    std::unique_ptr<Communicator> communicator, std::atomic<int64_t>* counter);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_COUNTING_COMMUNICATOR_H_
