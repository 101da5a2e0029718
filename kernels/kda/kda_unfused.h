#ifndef CADRE_KERNELS_KDA_KDA_UNFUSED_H_
#define CADRE_KERNELS_KDA_KDA_UNFUSED_H_

// A layer of KDA from convolutions to gated norm with a kernel for each step
// and every intermediate in memory: what fusing is measured against. The same
// products and tiles as the fused kernels, so that only the fusing differs.
// Forward, one document, bf16, head dimensions of 128. For kda_bench.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct UnfusedKdaArgs {
  Tensor q, k, v;        // bf16 [T,H*128], before their convolutions
  Tensor q_w, k_w, v_w;  // f32 [H*128,4], taps
  Tensor z;              // bf16 [T,H,128]
  Tensor beta;           // f32 [T,H]
  Tensor a_log;          // f32 [H]
  Tensor dt_bias;        // f32 [H*128]
  Tensor cu_seqlens;     // i32[2], on the device
  Tensor gate;           // bf16 [T,H,128]
  Tensor norm_w;         // f32 [128]
  Tensor y;              // bf16 [T,H,128]
  Tensor workspace;      // u8, UnfusedKdaBytes, aligned to 256
};

int64_t UnfusedKdaBytes(int64_t tokens, int64_t heads);

// T > 0 and a multiple of 64, softplus gates whose sum over 16 tokens stays
// above -75 nats. `launches`, if not null, receives the number of kernels.
absl::Status UnfusedKdaForward(const Exec& exec, const UnfusedKdaArgs& args,
                               int* launches);

}  // namespace cadre

#endif  // CADRE_KERNELS_KDA_KDA_UNFUSED_H_
