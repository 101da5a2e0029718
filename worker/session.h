#ifndef CADRE_WORKER_SESSION_H_
#define CADRE_WORKER_SESSION_H_

// One attempt on one rank, from the assignment to Ended: prepare, wait for the
// order to train, train, wait for the order to export, export. Whatever goes
// wrong becomes an Ended state with a cause; the daemon goes on. Runs on the
// thread that calls it; everything it shares with others is in the link.

#include <string>

#include "base/clock.h"
#include "base/timeouts.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/backend/backend.h"
#include "worker/session_link.h"
#include "worker/worker_metrics.h"

namespace cadre {

struct SessionOptions {
  // Not owned.
  DeviceBackend* backend = nullptr;
  WorkerMetrics* metrics = nullptr;
  Clock* clock = Clock::Real();
  std::string data_address;
  Timeouts timeouts;
};

// Blocks until the attempt is over on this rank; link->ended() holds then.
void RunSession(const SessionOptions& options,
                const cadre::v1::Assignment& assignment, SessionLink* link);

}  // namespace cadre

#endif  // CADRE_WORKER_SESSION_H_
