#include "kernels/moe_permute/moe_permute.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// moe_permute_cpu.cc
absl::Status MoePermuteCpu(const Exec& exec, const MoePermuteArgs&);
absl::Status MoeGatherCpu(const Exec& exec, const MoeGatherArgs&);
absl::Status MoeCombineCpu(const Exec& exec, const MoeCombineArgs&);
absl::Status MoeCombineBackwardCpu(const Exec& exec,
                                   const MoeCombineBackwardArgs&);
CADRE_CUDA_IMPL absl::Status MoePermuteCuda(const Exec& exec,
                                            const MoePermuteArgs&);
CADRE_CUDA_IMPL absl::Status MoeGatherCuda(const Exec& exec,
                                           const MoeGatherArgs&);
CADRE_CUDA_IMPL absl::Status MoeCombineCuda(const Exec& exec,
                                            const MoeCombineArgs&);
CADRE_CUDA_IMPL absl::Status MoeCombineBackwardCuda(
    const Exec& exec, const MoeCombineBackwardArgs&);

namespace {

constexpr char kOp[] = "moe_permute";

// OK if `table` is i32 of rank 1 with at least `rows` entries.
absl::Status CheckRowSource(const Tensor& table, int64_t rows) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "row_source", table, DType::kI32, {kAnyDim}));
  if (table.dim(0) >= rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kOp, ": row_source has ", table.dim(0), " entries for ",
                   rows, " rows; it needs one for each"));
}

// CPU: every entry of `table` lies in [-1, limit).
absl::Status CheckEntries(const Exec& exec, absl::string_view name,
                          const Tensor& table, int64_t count, int64_t limit) {
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  const int32_t* const values = table.data<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] >= -1 && values[i] < limit) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": ", name, "[", i, "] is ", values[i],
                     ", expected -1 or 0 to ", limit - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckMatrix(const Exec& exec, absl::string_view name,
                         const Tensor& matrix) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, name, matrix, 2));
  return CheckTensor(kOp, name, matrix, matrix.dtype(), {kAnyDim, kAnyDim});
}

}  // namespace

absl::Status MoePermute(const Exec& exec, const MoePermuteArgs& args) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "ids", args.ids, DType::kI32, {kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "offsets", args.offsets, DType::kI32, {kAnyDim}));
  const int64_t pairs = args.ids.num_elements();
  if (args.offsets.dim(0) < 1 || pairs > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": offsets is ", args.offsets.DebugString(), " and ids holds ",
        pairs, " pairs; at least one offset and fewer than 2^31 pairs"));
  }
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "row_source", args.row_source, DType::kI32, {pairs}));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "row_of", args.row_of, args.ids));
  CADRE_RETURN_IF_ERROR(
      CheckEntries(exec, "ids", args.ids, pairs, args.offsets.dim(0) - 1));
  if (exec.backend == Backend::kCuda)
    return MoePermuteCuda ? MoePermuteCuda(exec, args) : NoCudaError(kOp);
  return MoePermuteCpu(exec, args);
}

absl::Status MoeGather(const Exec& exec, const MoeGatherArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckMatrix(exec, "x", args.x));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "rows", args.rows, args.x.dtype(),
                                    {kAnyDim, args.x.dim(1)}));
  const int64_t num_rows = args.rows.dim(0);
  CADRE_RETURN_IF_ERROR(CheckRowSource(args.row_source, num_rows));
  if (args.top_k < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": top_k is ", args.top_k, ", expected at least 1"));
  }
  CADRE_RETURN_IF_ERROR(CheckEntries(exec, "row_source", args.row_source,
                                     num_rows, args.x.dim(0) * args.top_k));
  if (exec.backend == Backend::kCuda)
    return MoeGatherCuda ? MoeGatherCuda(exec, args) : NoCudaError(kOp);
  return MoeGatherCpu(exec, args);
}

absl::Status MoeCombine(const Exec& exec, const MoeCombineArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckMatrix(exec, "rows", args.rows));
  const DType dtype = args.rows.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "row_of", args.row_of, DType::kI32, {kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.row_of.dim(0);
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "weights", args.weights,
                                            ParamDType(exec, dtype),
                                            {num_tokens, args.row_of.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "y", args.y, dtype, {num_tokens, args.rows.dim(1)}));
  CADRE_RETURN_IF_ERROR(CheckEntries(exec, "row_of", args.row_of,
                                     args.row_of.num_elements(),
                                     args.rows.dim(0)));
  if (exec.backend == Backend::kCuda)
    return MoeCombineCuda ? MoeCombineCuda(exec, args) : NoCudaError(kOp);
  return MoeCombineCpu(exec, args);
}

absl::Status MoeCombineBackward(const Exec& exec,
                                const MoeCombineBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckMatrix(exec, "dy", args.dy));
  const DType dtype = args.dy.dtype();
  const int64_t num_tokens = args.dy.dim(0);
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "row_of", args.row_of, DType::kI32,
                                    {num_tokens, kAnyDim}));
  const int64_t top_k = args.row_of.dim(1);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "drows", args.drows, dtype, {kAnyDim, args.dy.dim(1)}));
  const int64_t num_rows = args.drows.dim(0);
  CADRE_RETURN_IF_ERROR(CheckRowSource(args.row_source, num_rows));
  const DType weight_dtype = ParamDType(exec, dtype);
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "weights", args.weights,
                                            weight_dtype, {num_tokens, top_k}));
  if (args.dweights.present()) {
    CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "dweights", args.dweights,
                                      weight_dtype, {num_tokens, top_k}));
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "rows", args.rows, args.drows));
  }
  CADRE_RETURN_IF_ERROR(CheckEntries(exec, "row_source", args.row_source,
                                     num_rows, num_tokens * top_k));
  CADRE_RETURN_IF_ERROR(CheckEntries(exec, "row_of", args.row_of,
                                     args.row_of.num_elements(), num_rows));
  if (exec.backend == Backend::kCuda) {
    return MoeCombineBackwardCuda ? MoeCombineBackwardCuda(exec, args)
                                  : NoCudaError(kOp);
  }
  return MoeCombineBackwardCpu(exec, args);
}

}  // namespace cadre
