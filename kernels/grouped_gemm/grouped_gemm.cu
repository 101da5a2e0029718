// Which kernel runs.
#include "kernels/common/launch.cuh"
#include "kernels/grouped_gemm/grouped_gemm_launch.h"

namespace cadre {

absl::Status GroupedGemmCuda(const Exec& exec, const GroupedGemmArgs& args) {
  const Tensor& result = args.mode == GroupedGemmMode::kNT   ? args.y
                         : args.mode == GroupedGemmMode::kNN ? args.x
                                                             : args.w;
  if (result.num_elements() == 0 || args.w.dim(0) == 0) {
    return absl::OkStatus();
  }
  // Empty sums too: K or N of 0 has nothing to load.
  if (args.w.num_elements() > 0 && WgmmaTakes(args)) {
    return GroupedGemmWgmma(exec, args);
  }
  return GroupedGemmPlain(exec, args);
}

}  // namespace cadre
