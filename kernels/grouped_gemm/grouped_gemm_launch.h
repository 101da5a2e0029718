#ifndef CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_LAUNCH_H_
#define CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_LAUNCH_H_

// The CUDA kernels behind GroupedGemmCuda, private to this folder. Each assumes
// what GroupedGemm has checked and a result that is not empty.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/grouped_gemm/grouped_gemm.h"

namespace cadre {

// Any shape, bf16 or f32, plain FMAs: 64 x 64 tiles through shared memory.
absl::Status GroupedGemmPlain(const Exec& exec, const GroupedGemmArgs& args);

// bf16 with N and K multiples of 8 and 16-byte aligned pointers: wgmma fed by
// TMA (grouped_gemm_wgmma.cu). At least one row, at most 4096 groups.
bool WgmmaTakes(const GroupedGemmArgs& args);
absl::Status GroupedGemmWgmma(const Exec& exec, const GroupedGemmArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_GROUPED_GEMM_GROUPED_GEMM_LAUNCH_H_
