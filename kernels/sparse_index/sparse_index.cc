#include "kernels/sparse_index/sparse_index.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// sparse_index_cpu.cc
absl::Status SparseIndexCpu(const Exec& exec, const SparseIndexArgs&);
CADRE_CUDA_IMPL absl::Status SparseIndexCuda(const Exec& exec,
                                             const SparseIndexArgs&);

namespace {

constexpr char kOp[] = "sparse_index";

absl::Status CheckPools(const SparseIndexArgs& args) {
  const DType dtype = args.q.dtype();
  if (args.kpool == 0) {
    if (!args.pool_gate.present() && !args.pool_ape.present())
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": pool_gate or pool_ape is given, but kpool is 0"));
  }
  if (args.kpool < 0 || args.topk % args.kpool != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": topk ", args.topk, " with pools of ", args.kpool,
                     " tokens; topk must be a multiple of the pool size"));
  }
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "pool_gate", args.pool_gate, dtype,
                                    {args.k.dim(0), args.k.dim(1)}));
  return CheckTensor(kOp, "pool_ape", args.pool_ape, dtype,
                     {args.kpool, args.k.dim(1)});
}

}  // namespace

absl::Status SparseIndex(const Exec& exec, const SparseIndexArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "q", args.q, 3));
  const DType dtype = args.q.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "q", args.q, dtype, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.q.dim(0);
  if (args.q.dim(1) < 1 || args.q.dim(2) < 1 || args.topk < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": q is ", args.q.DebugString(), " and topk is ",
                     args.topk, "; heads, width and topk are at least 1"));
  }
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "k", args.k, dtype, {num_tokens, args.q.dim(2)}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "head_weight", args.head_weight,
                                    ParamDType(exec, dtype),
                                    {num_tokens, args.q.dim(1)}));
  CADRE_RETURN_IF_ERROR(CheckCuSeqlens(exec, kOp, args.cu_seqlens, num_tokens));
  CADRE_RETURN_IF_ERROR(CheckPools(args));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "selected", args.selected, DType::kI32,
                  {num_tokens, IndexWidth(args.topk, args.kpool)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "num_valid", args.num_valid, DType::kI32, {num_tokens}));
  if (exec.backend == Backend::kCuda)
    return SparseIndexCuda ? SparseIndexCuda(exec, args) : NoCudaError(kOp);
  return SparseIndexCpu(exec, args);
}

}  // namespace cadre
