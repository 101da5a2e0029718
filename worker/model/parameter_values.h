#ifndef CADRE_WORKER_MODEL_PARAMETER_VALUES_H_
#define CADRE_WORKER_MODEL_PARAMETER_VALUES_H_

// A parameter's numbers from and to host memory, wherever it lies and however
// it is kept: what checkpoints, exports, imports and tests use. What is read
// and written is the master; the narrower value follows it.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "worker/model/parameters.h"

namespace cadre {

absl::StatusOr<std::vector<float>> ReadParameter(const Exec& exec,
                                                 const Parameter& parameter);
// As many floats as the value has elements.
absl::Status WriteParameter(const Exec& exec, absl::Span<const float> values,
                            Parameter* parameter);
// After the master was changed: value = master, rounded. Nothing to do where
// value is its own master.
absl::Status RefreshValue(const Exec& exec, const Parameter& parameter);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PARAMETER_VALUES_H_
