#include "kernels/glu/glu.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// glu_cpu.cc
absl::Status GluForwardCpu(const Exec& exec, const GluForwardArgs&);
absl::Status GluBackwardCpu(const Exec& exec, const GluBackwardArgs&);
CADRE_CUDA_IMPL absl::Status GluForwardCuda(const Exec& exec,
                                            const GluForwardArgs&);
CADRE_CUDA_IMPL absl::Status GluBackwardCuda(const Exec& exec,
                                             const GluBackwardArgs&);

namespace {

constexpr char kOp[] = "glu";

absl::Status CheckNumbers(const GluActivation& activation) {
  if (activation.kind == GluActivation::Kind::kClampedSwiGlu &&
      !(activation.limit > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": the clamp limit is ", activation.limit,
                     ", expected a number above 0"));
  }
  if (activation.kind == GluActivation::Kind::kSiTu &&
      !(activation.beta > 0 && activation.linear_beta > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": SiTU's beta and linear_beta are ", activation.beta, " and ",
        activation.linear_beta, ", expected numbers above 0"));
  }
  return absl::OkStatus();
}

// Halves as two tensors or as one, beside `h` [R,F].
absl::Status CheckHalves(const Tensor& h, const Tensor& gate, const Tensor& up,
                         const Tensor& gate_up) {
  const bool separate = gate.present() || up.present();
  if (separate == gate_up.present()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": give either gate and up, or gate_up; gate is ",
        gate.DebugString(), ", gate_up is ", gate_up.DebugString()));
  }
  if (!separate) {
    return CheckTensor(kOp, "gate_up", gate_up, h.dtype(),
                       {h.dim(0), 2 * h.dim(1)});
  }
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "gate", gate, h));
  return CheckLike(kOp, "up", up, h);
}

absl::Status CheckRows(const Exec& exec, const Tensor& h) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "h", h, 2));
  return CheckTensor(kOp, "h", h, h.dtype(), {kAnyDim, kAnyDim});
}

}  // namespace

absl::Status GluForward(const Exec& exec, const GluForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckNumbers(args.activation));
  CADRE_RETURN_IF_ERROR(CheckRows(exec, args.h));
  CADRE_RETURN_IF_ERROR(CheckHalves(args.h, args.gate, args.up, args.gate_up));
  if (exec.backend == Backend::kCuda)
    return GluForwardCuda ? GluForwardCuda(exec, args) : NoCudaError(kOp);
  return GluForwardCpu(exec, args);
}

absl::Status GluBackward(const Exec& exec, const GluBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckNumbers(args.activation));
  CADRE_RETURN_IF_ERROR(CheckRows(exec, args.dh));
  CADRE_RETURN_IF_ERROR(CheckHalves(args.dh, args.gate, args.up, args.gate_up));
  CADRE_RETURN_IF_ERROR(
      CheckHalves(args.dh, args.dgate, args.dup, args.dgate_up));
  if (args.gate_up.present() != args.dgate_up.present()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": gradients come in the form of the input (two tensors or one)"));
  }
  if (exec.backend == Backend::kCuda)
    return GluBackwardCuda ? GluBackwardCuda(exec, args) : NoCudaError(kOp);
  return GluBackwardCpu(exec, args);
}

}  // namespace cadre
