#ifndef CADRE_WORKER_MODEL_PARAMETER_VALUES_H_
#define CADRE_WORKER_MODEL_PARAMETER_VALUES_H_

// A parameter's numbers from and to host memory, wherever it lies and whatever
// its dtype: for imports, exports and tests. (The f32 masters of narrow values
// are the optimizer's.)

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
// The whole logical tensor, of which this rank keeps what it holds: all, or the
// rows of some experts. Not for sharded dense parameters.
absl::Status WriteHeldPart(const Exec& exec, absl::Span<const float> whole,
                           Parameter* parameter);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PARAMETER_VALUES_H_
