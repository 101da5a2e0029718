#include "kernels/embedding/embedding.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// embedding_cpu.cc
absl::Status EmbeddingForwardCpu(const Exec& exec, const EmbeddingForwardArgs&);
absl::Status EmbeddingBackwardCpu(const Exec& exec,
                                  const EmbeddingBackwardArgs&);
CADRE_CUDA_IMPL absl::Status EmbeddingForwardCuda(const Exec& exec,
                                                  const EmbeddingForwardArgs&);
CADRE_CUDA_IMPL absl::Status EmbeddingBackwardCuda(
    const Exec& exec, const EmbeddingBackwardArgs&);

namespace {

constexpr char kOp[] = "embedding";

// `rows` [T,D] beside `table` [V,D] and ids.
absl::Status Check(const Exec& exec, const Tensor& ids, const Tensor& table,
                   const Tensor& rows, DType row_dtype) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "table", table, 2));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "ids", ids, DType::kI32, {kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "table", table, table.dtype(), {kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "rows", rows, row_dtype, {ids.dim(0), table.dim(1)}));
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    const int32_t id = ids.data<int32_t>()[t];
    if (id < 0 || id >= table.dim(0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          kOp, ": token ", t, " has id ", id, ", outside the vocabulary of ",
          table.dim(0), "; check that the tokenizer belongs to the model"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EmbeddingForward(const Exec& exec,
                              const EmbeddingForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(
      Check(exec, args.ids, args.table, args.y, args.table.dtype()));
  if (exec.backend == Backend::kCuda) {
    return EmbeddingForwardCuda ? EmbeddingForwardCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return EmbeddingForwardCpu(exec, args);
}

absl::Status EmbeddingBackward(const Exec& exec,
                               const EmbeddingBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "dy", args.dy, 2));
  CADRE_RETURN_IF_ERROR(
      Check(exec, args.ids, args.dtable, args.dy, args.dy.dtype()));
  if (args.dtable.dtype() != ParamDType(exec, args.dy.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": dtable is ", args.dtable.DebugString(), " beside dy of ",
        DTypeName(args.dy.dtype()), ", expected ",
        DTypeName(ParamDType(exec, args.dy.dtype()))));
  }
  if (exec.backend == Backend::kCuda) {
    return EmbeddingBackwardCuda ? EmbeddingBackwardCuda(exec, args)
                                 : NoCudaError(kOp);
  }
  return EmbeddingBackwardCpu(exec, args);
}

}  // namespace cadre
