#include "kernels/router/router.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// router_cpu.cc
absl::Status RouterForwardCpu(const Exec& exec, const RouterForwardArgs&);
absl::Status RouterBackwardCpu(const Exec& exec, const RouterBackwardArgs&);
// router_aux_cpu.cc
absl::Status RouterAuxAccumulateCpu(const Exec& exec,
                                    const RouterAuxAccumulateArgs&);
absl::Status RouterAuxLossCpu(const Exec& exec, const RouterAuxStatistics&,
                              const Tensor& loss);
absl::Status RouterAuxBackwardCpu(const Exec& exec,
                                  const RouterAuxBackwardArgs&);
CADRE_CUDA_IMPL absl::Status RouterForwardCuda(const Exec& exec,
                                               const RouterForwardArgs&);
CADRE_CUDA_IMPL absl::Status RouterBackwardCuda(const Exec& exec,
                                                const RouterBackwardArgs&);
CADRE_CUDA_IMPL absl::Status RouterAuxAccumulateCuda(
    const Exec& exec, const RouterAuxAccumulateArgs&);
CADRE_CUDA_IMPL absl::Status RouterAuxLossCuda(const Exec& exec,
                                               const RouterAuxStatistics&,
                                               const Tensor& loss);
CADRE_CUDA_IMPL absl::Status RouterAuxBackwardCuda(
    const Exec& exec, const RouterAuxBackwardArgs&);

namespace {

constexpr char kOp[] = "router";

// The type of logits: as activations on the CPU, always f32 on CUDA.
absl::Status CheckLogits(const Exec& exec, const Tensor& logits) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "logits", logits, 2));
  return CheckTensor(kOp, "logits", logits, ParamDType(exec, logits.dtype()),
                     {kAnyDim, kAnyDim});
}

absl::Status CheckOptions(const RouterOptions& options, int64_t num_experts,
                          int64_t top_k) {
  const int64_t groups = options.num_groups;
  if (groups < 1 || num_experts % groups != 0 || options.topk_groups < 1 ||
      options.topk_groups > groups) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": ", num_experts, " experts in ", groups, " groups of which ",
        options.topk_groups,
        " are kept; the number of groups must divide the experts and be at "
        "least the number kept"));
  }
  const int64_t eligible = num_experts / groups * options.topk_groups;
  if (top_k < 1 || top_k > eligible) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": ", top_k, " experts per token, but ", eligible,
                     " are eligible; choose 1 to ", eligible));
  }
  return absl::OkStatus();
}

absl::Status CheckStatistics(const RouterAuxStatistics& statistics,
                             int64_t num_experts) {
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "counts", statistics.counts,
                                    DType::kI64, {num_experts}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "prob_sum", statistics.prob_sum,
                                    DType::kF64, {num_experts}));
  return CheckTensor(kOp, "num_rows", statistics.num_rows, DType::kI64, {1});
}

}  // namespace

absl::Status RouterForward(const Exec& exec, const RouterForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckLogits(exec, args.logits));
  const DType dtype = args.logits.dtype();
  const int64_t num_tokens = args.logits.dim(0);
  const int64_t num_experts = args.logits.dim(1);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "ids", args.ids, DType::kI32, {num_tokens, kAnyDim}));
  const int64_t top_k = args.ids.dim(1);
  CADRE_RETURN_IF_ERROR(CheckOptions(args.options, num_experts, top_k));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(
      kOp, "correction_bias", args.correction_bias, dtype, {num_experts}));
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "mask", args.mask, DType::kI32, {num_tokens}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "weights", args.weights, dtype, {num_tokens, top_k}));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "counts", args.counts,
                                            DType::kI64, {num_experts}));
  if (exec.backend == Backend::kCuda) {
    return RouterForwardCuda ? RouterForwardCuda(exec, args) : NoCudaError(kOp);
  }
  return RouterForwardCpu(exec, args);
}

absl::Status RouterBackward(const Exec& exec, const RouterBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckLogits(exec, args.logits));
  const int64_t num_tokens = args.logits.dim(0);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "ids", args.ids, DType::kI32, {num_tokens, kAnyDim}));
  const int64_t top_k = args.ids.dim(1);
  CADRE_RETURN_IF_ERROR(CheckOptions(args.options, args.logits.dim(1), top_k));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "dweights", args.dweights,
                                    args.logits.dtype(), {num_tokens, top_k}));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dlogits", args.dlogits, args.logits));
  if (exec.backend == Backend::kCuda) {
    return RouterBackwardCuda ? RouterBackwardCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return RouterBackwardCpu(exec, args);
}

absl::Status RouterAuxAccumulate(const Exec& exec,
                                 const RouterAuxAccumulateArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckLogits(exec, args.logits));
  CADRE_RETURN_IF_ERROR(CheckOptions({}, args.logits.dim(1), args.top_k));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "mask", args.mask, DType::kI32,
                                            {args.logits.dim(0)}));
  CADRE_RETURN_IF_ERROR(CheckStatistics(args.statistics, args.logits.dim(1)));
  if (exec.backend == Backend::kCuda) {
    return RouterAuxAccumulateCuda ? RouterAuxAccumulateCuda(exec, args)
                                   : NoCudaError(kOp);
  }
  return RouterAuxAccumulateCpu(exec, args);
}

absl::Status RouterAuxLoss(const Exec& exec,
                           const RouterAuxStatistics& statistics,
                           const Tensor& loss) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "counts", statistics.counts, DType::kI64, {kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckStatistics(statistics, statistics.counts.dim(0)));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "loss", loss, DType::kF64, {1}));
  if (exec.backend == Backend::kCuda) {
    return RouterAuxLossCuda ? RouterAuxLossCuda(exec, statistics, loss)
                             : NoCudaError(kOp);
  }
  return RouterAuxLossCpu(exec, statistics, loss);
}

absl::Status RouterAuxBackward(const Exec& exec,
                               const RouterAuxBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckLogits(exec, args.logits));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "mask", args.mask, DType::kI32,
                                            {args.logits.dim(0)}));
  CADRE_RETURN_IF_ERROR(CheckStatistics(args.statistics, args.logits.dim(1)));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dlogits", args.dlogits, args.logits));
  if (exec.backend == Backend::kCuda) {
    return RouterAuxBackwardCuda ? RouterAuxBackwardCuda(exec, args)
                                 : NoCudaError(kOp);
  }
  return RouterAuxBackwardCpu(exec, args);
}

}  // namespace cadre
