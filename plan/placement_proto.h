#ifndef CADRE_PLAN_PLACEMENT_PROTO_H_
#define CADRE_PLAN_PLACEMENT_PROTO_H_

// Expert placements as they travel between coordinator and workers. Pure
// functions.

#include <cstdint>

#include "absl/status/statusor.h"
#include "cadre/v1/worker_service.pb.h"
#include "plan/expert_placement.h"

namespace cadre {

v1::ExpertPlacement ToProto(const ExpertPlacement& placement,
                            int64_t attempt_epoch);

// INVALID_ARGUMENT when a size is off, or an expert of a layer has no slot.
absl::StatusOr<ExpertPlacement> FromProto(const v1::ExpertPlacement& proto);

}  // namespace cadre

#endif  // CADRE_PLAN_PLACEMENT_PROTO_H_
