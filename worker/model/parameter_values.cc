#include "worker/model/parameter_values.h"

#include "worker/device/transfer.h"

namespace cadre {

absl::StatusOr<std::vector<float>> ReadParameter(const Exec& exec,
                                                 const Parameter& parameter) {
  return ReadFloats(exec, parameter.value);
}

absl::Status WriteParameter(const Exec& exec, absl::Span<const float> values,
                            Parameter* parameter) {
  return WriteFloats(exec, values, parameter->value);
}

}  // namespace cadre
