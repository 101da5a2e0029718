#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/gemm/gemm.h"

namespace cadre {

// cross_entropy_cpu.cc
absl::Status CrossEntropyCpu(const Exec& exec, const CrossEntropyArgs&);
CADRE_CUDA_IMPL absl::Status CrossEntropyCuda(const Exec& exec,
                                              const CrossEntropyArgs&);
CADRE_CUDA_IMPL absl::Status LinearCrossEntropyCuda(
    const Exec& exec, const LinearCrossEntropyArgs&);

namespace {

constexpr char kOp[] = "cross_entropy";

absl::Status CheckTargets(const Exec& exec, const Tensor& targets,
                          int64_t num_tokens, int64_t vocabulary) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "targets", targets, DType::kI32, {num_tokens}));
  if (vocabulary < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": the vocabulary is empty"));
  }
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int32_t target = targets.data<int32_t>()[t];
    if (target == kIgnoreTarget || (target >= 0 && target < vocabulary))
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": token ", t, " has target ", target, ", expected ",
                     kIgnoreTarget, " or 0 to ", vocabulary - 1));
  }
  return absl::OkStatus();
}

absl::Status LinearCrossEntropyCpu(const Exec& exec,
                                   const LinearCrossEntropyArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t block = args.workspace.dim(0);
  const bool gradient = args.dx.present() || args.dhead.present();
  for (int64_t begin = 0; begin < num_tokens; begin += block) {
    const int64_t end = std::min(num_tokens, begin + block);
    const Tensor x = args.x.Rows(begin, end);
    const Tensor logits = args.workspace.Rows(0, end - begin);
    CADRE_RETURN_IF_ERROR(
        Gemm(exec, {.a = x, .b = args.head, .c = logits, .trans_b = true}));
    if (args.logits.present()) {
      const Tensor out = args.logits.Rows(begin, end);
      std::copy_n(static_cast<const char*>(logits.raw()), logits.num_bytes(),
                  static_cast<char*>(out.raw()));
    }
    CADRE_RETURN_IF_ERROR(
        CrossEntropyCpu(exec, {.logits = logits,
                               .targets = args.targets.Rows(begin, end),
                               .loss_sum = args.loss_sum,
                               .gradient = gradient,
                               .inv_count = args.inv_count}));
    if (args.dx.present()) {
      CADRE_RETURN_IF_ERROR(Gemm(
          exec, {.a = logits, .b = args.head, .c = args.dx.Rows(begin, end)}));
    }
    if (args.dhead.present()) {
      CADRE_RETURN_IF_ERROR(Gemm(
          exec,
          {.a = logits, .b = x, .c = args.dhead, .trans_a = true, .beta = 1}));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "logits", args.logits, 2));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "logits", args.logits,
                                    args.logits.dtype(), {kAnyDim, kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTargets(exec, args.targets, args.logits.dim(0), args.logits.dim(1)));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "loss_sum", args.loss_sum, DType::kF64, {1}));
  if (exec.backend == Backend::kCuda)
    return CrossEntropyCuda ? CrossEntropyCuda(exec, args) : NoCudaError(kOp);
  return CrossEntropyCpu(exec, args);
}

absl::Status LinearCrossEntropy(const Exec& exec,
                                const LinearCrossEntropyArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 2));
  const DType dtype = args.x.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "x", args.x, dtype, {kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.x.dim(0);
  const int64_t hidden = args.x.dim(1);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "head", args.head, dtype, {kAnyDim, hidden}));
  const int64_t vocabulary = args.head.dim(0);
  CADRE_RETURN_IF_ERROR(
      CheckTargets(exec, args.targets, num_tokens, vocabulary));
  const bool wide =
      exec.backend == Backend::kCuda && args.workspace.dtype() == DType::kF32;
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "workspace", args.workspace,
                                    wide ? DType::kF32 : dtype,
                                    {kAnyDim, vocabulary}));
  if (args.workspace.dim(0) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": workspace holds no row of logits, expected at least one"));
  }
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "loss_sum", args.loss_sum, DType::kF64, {1}));
  CADRE_RETURN_IF_ERROR(
      CheckOptionalTensor(kOp, "dx", args.dx, dtype, {num_tokens, hidden}));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(
      kOp, "dhead", args.dhead, ParamDType(exec, dtype), {vocabulary, hidden}));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "logits", args.logits, dtype,
                                            {num_tokens, vocabulary}));
  if (exec.backend == Backend::kCuda) {
    return LinearCrossEntropyCuda ? LinearCrossEntropyCuda(exec, args)
                                  : NoCudaError(kOp);
  }
  return LinearCrossEntropyCpu(exec, args);
}

}  // namespace cadre
