#include "worker/model/parameter_values.h"

#include "base/status_macros.h"
#include "kernels/cast/cast.h"
#include "worker/device/transfer.h"

namespace cadre {

absl::StatusOr<std::vector<float>> ReadParameter(const Exec& exec,
                                                 const Parameter& parameter) {
  return ReadFloats(exec, parameter.Master());
}

absl::Status WriteParameter(const Exec& exec, absl::Span<const float> values,
                            Parameter* parameter) {
  CADRE_RETURN_IF_ERROR(WriteFloats(exec, values, parameter->Master()));
  return RefreshValue(exec, *parameter);
}

absl::Status RefreshValue(const Exec& exec, const Parameter& parameter) {
  if (!parameter.master.present()) return absl::OkStatus();
  return Cast(exec, parameter.master, parameter.value);
}

}  // namespace cadre
