#ifndef CADRE_COORDINATOR_SCHEDULER_INPUT_H_
#define CADRE_COORDINATOR_SCHEDULER_INPUT_H_

// From the coordinator's records to what the scheduler looks at. Pure;
// thread-safe.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cadre/state/v1/state.pb.h"
#include "coordinator/scheduler.h"
#include "coordinator/store.h"
#include "coordinator/worker_registry.h"

namespace cadre::coordinator {

// A worker that names none is alone with those of its host.
std::string LinkDomainOf(const v1::Device& device);

// Without waited and backoff_left, which are the clock's. `smaller` has every
// number that the plans allow; whether it is time for them, the caller knows.
WaitingJob ToWaiting(const state::v1::JobRecord& record);

HoldingJob ToHolding(const state::v1::JobRecord& record);

// Every registered worker; `rows` by id, `held` are members of attempts.
std::vector<WorkerSlot> MakeSlots(const WorkerRegistry& registry,
                                  absl::Duration now,
                                  const std::map<std::string, WorkerRow>& rows,
                                  const std::set<std::string>& held);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SCHEDULER_INPUT_H_
