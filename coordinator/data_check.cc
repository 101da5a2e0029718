#include "coordinator/data_check.h"

#include <algorithm>
#include <cmath>

namespace cadre::coordinator {

int64_t StepsPerEpoch(const v1::JobSpec& spec, int64_t rows) {
  const int64_t batch = std::max(1, spec.training().global_batch_size());
  return (rows + batch - 1) / batch;
}

int64_t TotalSteps(const v1::JobSpec& spec, int64_t rows) {
  if (spec.training().has_max_steps()) return spec.training().max_steps();
  const double batch = std::max(1, spec.training().global_batch_size());
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(spec.training().epochs() *
                                        static_cast<double>(rows) / batch)));
}

}  // namespace cadre::coordinator
