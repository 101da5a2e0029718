#include <cstdint>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grouped_gemm/grouped_gemm.h"

namespace cadre {

absl::Status GroupedGemmCpu(const Exec& exec, const GroupedGemmArgs& args) {
  const int64_t num_groups = args.w.dim(0);
  const int32_t* const offsets = args.offsets.data<int32_t>();
  const double beta = args.accumulate ? 1 : 0;
  for (int64_t g = 0; g < num_groups; ++g) {
    const Tensor x = args.x.Rows(offsets[g], offsets[g + 1]);
    const Tensor y = args.y.Rows(offsets[g], offsets[g + 1]);
    const Tensor w =
        args.w.Rows(g, g + 1).Reshape({args.w.dim(1), args.w.dim(2)});
    GemmArgs gemm{.alpha = args.alpha, .beta = beta};
    switch (args.mode) {
      case GroupedGemmMode::kNT:
        gemm.a = x, gemm.b = w, gemm.c = y;
        gemm.trans_b = true;
        break;
      case GroupedGemmMode::kNN:
        gemm.a = y, gemm.b = w, gemm.c = x;
        break;
      case GroupedGemmMode::kTN:
        gemm.a = y, gemm.b = x, gemm.c = w;
        gemm.trans_a = true;
        break;
    }
    CADRE_RETURN_IF_ERROR(Gemm(exec, gemm));
  }
  return absl::OkStatus();
}

}  // namespace cadre
