#ifndef CADRE_WORKER_BACKEND_METERED_COMMUNICATOR_H_
#define CADRE_WORKER_BACKEND_METERED_COMMUNICATOR_H_

// Tells an observer the duration and size of every collective of a communicator
// and of those split from it.

#include <memory>

#include "worker/backend/backend.h"
#include "worker/comm/communicator.h"

namespace cadre {

// `observer` must outlive the communicator and its splits.
std::unique_ptr<Communicator> MeterCollectives(
    std::unique_ptr<Communicator> communicator, CollectiveObserver* observer);

}  // namespace cadre

#endif  // CADRE_WORKER_BACKEND_METERED_COMMUNICATOR_H_
