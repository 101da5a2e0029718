#ifndef CADRE_WORKER_FAILURE_H_
#define CADRE_WORKER_FAILURE_H_

// What an error of the engine means for the job. Pure.

#include "absl/status/status.h"
#include "cadre/v1/worker_service.pb.h"

namespace cadre {

// What the session was doing when the error came.
enum class Activity { kPrepare, kTrain, kSave, kExport };

// Ended(ERROR) with the cause, the status and whether this rank only saw a peer
// fail. The caller sets step. An error that this rank's own device gave
// (kernels/common/device_error.h) is DEVICE_ERROR whatever its code, but for
// memory that ran out and a driver that the job cannot run with.
cadre::v1::EndedState EndedByError(const absl::Status& status,
                                   Activity activity);

// Says which worker the rank is that a collective waited for in vain, where the
// status knows it.
absl::Status NamePeer(const absl::Status& status,
                      const cadre::v1::Assignment& assignment);

}  // namespace cadre

#endif  // CADRE_WORKER_FAILURE_H_
