#include "kernels/grouped_gemm/grouped_gemm.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/gemm/tile_cpu.h"

namespace cadre {

// grouped_gemm_cpu.cc
absl::Status GroupedGemmCpu(const Exec& exec, const GroupedGemmArgs& args);
CADRE_CUDA_IMPL absl::Status GroupedGemmCuda(const Exec& exec,
                                             const GroupedGemmArgs& args);

namespace {

// Of grouped_gemm_plain.cu, and what a warpgroup of grouped_gemm_wgmma.cu
// multiplies or skips.
constexpr int64_t kCudaTileRows = 64;

absl::Status Check(const Exec& exec, const GroupedGemmArgs& args) {
  constexpr char kOp[] = "grouped_gemm";
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 2));
  const DType dtype = args.x.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "x", args.x, dtype, {kAnyDim, kAnyDim}));
  const bool wide = exec.backend == Backend::kCuda &&
                    args.mode == GroupedGemmMode::kTN &&
                    args.w.dtype() == DType::kF32;
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "w", args.w,
                                    wide ? DType::kF32 : dtype,
                                    {kAnyDim, kAnyDim, args.x.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "y", args.y, dtype, {args.x.dim(0), args.w.dim(1)}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "offsets", args.offsets, DType::kI32,
                                    {args.w.dim(0) + 1}));
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  int32_t last = 0;
  for (int64_t g = 0; g <= args.w.dim(0); ++g) {
    const int32_t offset = args.offsets.data<int32_t>()[g];
    if (offset < last || (g == 0 && offset != 0) || offset > args.x.dim(0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          kOp, ": offsets[", g, "] is ", offset, " after ", last,
          "; offsets start at 0, never fall and end at most at the ",
          args.x.dim(0), " rows of x"));
    }
    last = offset;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GroupedGemm(const Exec& exec, const GroupedGemmArgs& args) {
  CADRE_RETURN_IF_ERROR(Check(exec, args));
  if (exec.backend == Backend::kCuda) {
    return GroupedGemmCuda ? GroupedGemmCuda(exec, args)
                           : NoCudaError("grouped_gemm");
  }
  return GroupedGemmCpu(exec, args);
}

int64_t GroupedGemmTileRows(const Exec& exec, DType dtype) {
  if (exec.backend == Backend::kCuda) return kCudaTileRows;
  return dtype == DType::kF32 ? BestGemmTile().rows : 1;
}

}  // namespace cadre
