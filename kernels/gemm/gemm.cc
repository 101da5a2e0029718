#include "kernels/gemm/gemm.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

absl::Status GemmCpu(const Exec& exec, const GemmArgs& args);  // gemm_cpu.cc
CADRE_CUDA_IMPL absl::Status GemmCuda(const Exec& exec, const GemmArgs& args);

namespace {

absl::Status CheckPitch(absl::string_view name, const Tensor& tensor,
                        int64_t pitch) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  if (tensor.dim(0) > kLimit || tensor.dim(1) > kLimit || pitch > kLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gemm: ", name, " is ", tensor.DebugString(), " with pitch ", pitch,
        "; BLAS takes sizes below 2^31: split the product by rows"));
  }
  if (pitch != 0 && pitch < tensor.dim(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gemm: the pitch ", pitch, " of ", name, " is shorter than its rows, ",
        tensor.DebugString(), "; give 0 for packed rows"));
  }
  return absl::OkStatus();
}

absl::Status Check(const Exec& exec, const GemmArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, "gemm", "a", args.a, 2));
  const DType dtype = args.a.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor("gemm", "a", args.a, dtype, {kAnyDim, kAnyDim}));
  const int64_t m = args.a.dim(args.trans_a ? 1 : 0);
  const int64_t k = args.a.dim(args.trans_a ? 0 : 1);
  CADRE_RETURN_IF_ERROR(
      args.trans_b ? CheckTensor("gemm", "b", args.b, dtype, {kAnyDim, k})
                   : CheckTensor("gemm", "b", args.b, dtype, {k, kAnyDim}));
  const int64_t n = args.b.dim(args.trans_b ? 0 : 1);
  const bool wide = exec.backend == Backend::kCuda && dtype == DType::kBF16 &&
                    args.c.dtype() == DType::kF32;
  CADRE_RETURN_IF_ERROR(
      CheckTensor("gemm", "c", args.c, wide ? DType::kF32 : dtype, {m, n}));
  CADRE_RETURN_IF_ERROR(CheckPitch("a", args.a, args.lda));
  CADRE_RETURN_IF_ERROR(CheckPitch("b", args.b, args.ldb));
  return CheckPitch("c", args.c, args.ldc);
}

}  // namespace

absl::Status Gemm(const Exec& exec, const GemmArgs& args) {
  CADRE_RETURN_IF_ERROR(Check(exec, args));
  if (exec.backend == Backend::kCuda)
    return GemmCuda ? GemmCuda(exec, args) : NoCudaError("gemm");
  return GemmCpu(exec, args);
}

}  // namespace cadre
