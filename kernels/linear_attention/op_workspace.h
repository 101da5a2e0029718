#ifndef CADRE_KERNELS_LINEAR_ATTENTION_OP_WORKSPACE_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_OP_WORKSPACE_H_

// What an op's workspace has to hold on CUDA, whichever kernels its inputs
// take. Private to kernels/{kda,gdn}. Pure, no CUDA.

#include <cstdint>

#include "kernels/linear_attention/generic.h"
#include "kernels/linear_attention/pad.h"
#include "kernels/linear_attention/workspace.h"

namespace cadre::linear_attention {

// `in` is KdaInputs, or GdnInputs with `head_gate`.
template <typename Inputs>
int64_t OpWorkspaceBytes(const Inputs& in, bool head_gate, bool backward) {
  const WorkShape work{.tokens = in.q.dim(0),
                       .heads = in.v.dim(1),
                       .key_heads = in.q.dim(1),
                       .docs = in.cu_seqlens.dim(0) - 1,
                       .backward = backward};
  switch (KernelsFor(in.q, in.v)) {
    case DeltaKernels::kChunked:
      return LayOutWork(work).bytes;
    case DeltaKernels::kPadded:
      return LayOutPad({.work = work,
                        .key_dim = in.q.dim(2),
                        .value_dim = in.v.dim(2),
                        .head_gate = head_gate,
                        .initial_state = in.initial_state.present()})
          .bytes;
    case DeltaKernels::kGeneric:
      break;
  }
  // The generic kernels need none forward.
  return backward ? GenericBackwardBytes(work.tokens, work.heads, in.q.dim(2))
                  : 0;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_OP_WORKSPACE_H_
