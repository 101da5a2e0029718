#ifndef CADRE_WORKER_JOB_OPTIONS_H_
#define CADRE_WORKER_JOB_OPTIONS_H_

// The border between the wire and the engine: an Assignment in, the proto-free
// options of the trainer out. Pure.

#include "absl/status/statusor.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/train/trainer_options.h"

namespace cadre {

// Unset fields get the defaults of the job file. INVALID_ARGUMENT names the
// field; what the trainer cannot do is refused, never ignored.
absl::StatusOr<TrainerOptions> MakeTrainerOptions(
    const cadre::v1::Assignment& assignment);

}  // namespace cadre

#endif  // CADRE_WORKER_JOB_OPTIONS_H_
