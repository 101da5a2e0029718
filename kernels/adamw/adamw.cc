#include "kernels/adamw/adamw.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// adamw_cpu.cc
absl::Status AdamWCpu(const Exec& exec, const AdamWArgs&);
absl::Status SumOfSquaresCpu(const Exec& exec, const SumOfSquaresArgs&);
CADRE_CUDA_IMPL absl::Status AdamWCuda(const Exec& exec,
                                       absl::Span<const AdamWArgs>);
CADRE_CUDA_IMPL absl::Status SumOfSquaresCuda(const Exec& exec,
                                              const SumOfSquaresArgs&);

namespace {

constexpr char kOp[] = "adamw";

absl::Status Check(const Exec& exec, const AdamWArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "p", args.p, 0));
  if (exec.backend == Backend::kCuda && args.p.dtype() != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": p is ", args.p.DebugString(),
                     "; on CUDA it is the f32 master copy, and a bf16 weight "
                     "is given as value"));
  }
  if (args.value.present() &&
      (exec.backend != Backend::kCuda || args.value.dtype() != DType::kBF16 ||
       args.value.num_elements() != args.p.num_elements())) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": value is ", args.value.DebugString(),
                     ", expected bf16 of the size of p, ", args.p.DebugString(),
                     ", and only on CUDA"));
  }
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "m", args.m, args.p));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "v", args.v, args.p));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "g", args.g, args.p));
  auto is_fraction = [](double beta) { return beta >= 0 && beta < 1; };
  if (args.step < 1 || !is_fraction(args.beta1) || !is_fraction(args.beta2) ||
      !(args.epsilon >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": step ", args.step, ", beta1 ", args.beta1, ", beta2 ",
        args.beta2, ", epsilon ", args.epsilon,
        "; step counts from 1, betas lie in [0, 1), epsilon is not negative"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AdamW(const Exec& exec, const AdamWArgs& args) {
  return AdamW(exec, absl::MakeConstSpan(&args, 1));
}

absl::Status AdamW(const Exec& exec, absl::Span<const AdamWArgs> args) {
  for (const AdamWArgs& one : args) CADRE_RETURN_IF_ERROR(Check(exec, one));
  if (exec.backend == Backend::kCuda)
    return AdamWCuda ? AdamWCuda(exec, args) : NoCudaError(kOp);
  for (const AdamWArgs& one : args) CADRE_RETURN_IF_ERROR(AdamWCpu(exec, one));
  return absl::OkStatus();
}

absl::Status SumOfSquares(const Exec& exec, const SumOfSquaresArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 0));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "sum", args.sum, DType::kF64, {1}));
  if (exec.backend == Backend::kCuda)
    return SumOfSquaresCuda ? SumOfSquaresCuda(exec, args) : NoCudaError(kOp);
  return SumOfSquaresCpu(exec, args);
}

}  // namespace cadre
