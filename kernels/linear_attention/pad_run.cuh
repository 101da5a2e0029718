#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PAD_RUN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PAD_RUN_CUH_

// KDA (kHeadGate = false) and Gated DeltaNet (true) with keys or values of 64:
// copies with more columns (pad_plan.h), the kernels for 128, copies with fewer
// columns. Host side; private to kernels/{kda,gdn}.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/linear_attention/pad.cuh"
#include "kernels/linear_attention/pad.h"
#include "kernels/linear_attention/pad_plan.h"
#include "kernels/linear_attention/run.cuh"

namespace cadre::linear_attention {

inline absl::Status CheckPad(absl::string_view op, const PadShape& shape,
                             const Tensor& q, const Tensor& workspace) {
  if (q.dim(0) >= (int64_t{1} << 31)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", q.dim(0), " tokens are more than 2^31 - 1"));
  }
  const int64_t bytes = LayOutPad(shape).bytes;
  if (!workspace.present() || workspace.num_bytes() < bytes ||
      reinterpret_cast<uintptr_t>(workspace.raw()) % 256 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": workspace is ", workspace.DebugString(), ", but ",
        shape.work.backward ? "a backward" : "a forward", " over ",
        shape.work.tokens, " tokens, ", shape.work.docs, " documents and ",
        shape.work.heads, " heads with keys of ", shape.key_dim,
        " and values of ", shape.value_dim, " on CUDA works in ", bytes,
        " bytes aligned to 256; ask WorkspaceBytes"));
  }
  return absl::OkStatus();
}

template <bool kHeadGate>
PadShape PadShapeOf(const Problem& p, const Tensor& q, const Tensor& v,
                    bool backward) {
  return {.work = {p.tokens, p.heads, p.key_heads, p.docs, backward},
          .key_dim = q.dim(2),
          .value_dim = v.dim(2),
          .head_gate = kHeadGate,
          .initial_state = p.initial_state != nullptr};
}

// What both passes read.
inline void WidenInputs(PadPlan& plan, Problem& p) {
  const PadLayout& at = plan.at();
  plan.Keys(p.q, at.q, plan.QueryScale());
  plan.Keys(p.k, at.k);
  plan.Values(p.v, at.v);
  plan.Gates(p.z, at.z);
  plan.Bias(p.dt_bias, at.dt_bias);
  plan.State(p.initial_state, at.initial_state);
}

// As RunForward; q and v are the op's, for their widths.
template <bool kHeadGate>
absl::Status RunPaddedForward(absl::string_view op, const Exec& exec, Problem p,
                              ScanOutput out, const Tensor& q, const Tensor& v,
                              const Tensor& workspace) {
  if (p.heads == 0) return absl::OkStatus();
  const PadShape shape = PadShapeOf<kHeadGate>(p, q, v, false);
  CADRE_RETURN_IF_ERROR(CheckPad(op, shape, q, workspace));
  PadPlan plan(shape, workspace.raw());
  WidenInputs(plan, p);
  plan.ValuesOut(out.o, plan.at().o);
  plan.StateOut(out.final_state, plan.at().final_state);
  CADRE_RETURN_IF_ERROR(plan.CheckAligned(op));
  CADRE_RETURN_IF_ERROR(RunPad(op, exec, plan.widen()));
  CADRE_RETURN_IF_ERROR(RunForward<kHeadGate>(op, exec, p, out, plan.Work()));
  return RunPad(op, exec, plan.narrow());
}

// As RunBackward.
template <bool kHeadGate>
absl::Status RunPaddedBackward(absl::string_view op, const Exec& exec,
                               Problem p, ScanOutput scan, FinishOutput out,
                               float* da_log, float* ddt_bias, const Tensor& q,
                               const Tensor& v, const Tensor& workspace) {
  if (p.heads == 0) return absl::OkStatus();
  const PadShape shape = PadShapeOf<kHeadGate>(p, q, v, true);
  CADRE_RETURN_IF_ERROR(CheckPad(op, shape, q, workspace));
  PadPlan plan(shape, workspace.raw());
  const PadLayout& at = plan.at();
  WidenInputs(plan, p);
  plan.Values(p.d_o, at.d_o);
  plan.State(p.d_final_state, at.d_final_state);
  plan.KeysOut(out.dq, at.dq, plan.QueryScale());
  plan.KeysOut(out.dk, at.dk);
  plan.ValuesOut(out.dv, at.dv);
  plan.GatesOut(out.dz, at.dz);
  plan.BiasOut(ddt_bias, at.ddt_bias);
  plan.StateOut(scan.d_initial_state, at.d_initial_state);
  CADRE_RETURN_IF_ERROR(plan.CheckAligned(op));
  CADRE_RETURN_IF_ERROR(RunPad(op, exec, plan.widen()));
  CADRE_RETURN_IF_ERROR(RunBackward<kHeadGate>(op, exec, p, scan, out, da_log,
                                               ddt_bias, plan.Work()));
  return RunPad(op, exec, plan.narrow());
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PAD_RUN_CUH_
