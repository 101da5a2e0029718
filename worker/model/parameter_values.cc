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

absl::Status WriteHeldPart(const Exec& exec, absl::Span<const float> whole,
                           Parameter* parameter) {
  if (parameter->rows.empty()) return WriteParameter(exec, whole, parameter);
  const int64_t width = parameter->value.num_elements() /
                        static_cast<int64_t>(parameter->rows.size());
  std::vector<float> held;
  for (const HeldRow& row : parameter->rows) {
    if (row.index < 0) {
      held.insert(held.end(), width, 0.0f);  // an empty slot
      continue;
    }
    const auto at = whole.begin() + row.index * width;
    held.insert(held.end(), at, at + width);
  }
  return WriteParameter(exec, held, parameter);
}

}  // namespace cadre
