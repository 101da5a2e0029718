#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_OUTPUT_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_OUTPUT_CUH_

// What the last part of a backward writes. Private to kernels/{kda,gdn}.

#include <cstdint>

namespace cadre::linear_attention {

struct FinishOutput {
  uint16_t* dq;  // bf16 [T,Hk,128]
  uint16_t* dk;
  uint16_t* dv;  // bf16 [T,H,128]
  uint16_t* dz;  // KDA: bf16 [T,H,128]
  float* da;     // GDN: [T,H]
  float* dbeta;  // [T,H]
  // GDN with shared key heads, f32 [T,num_heads/shared,128]: sums so far over
  // the value heads of a key head.
  float* part_dq;
  float* part_dk;
  // Partial sums of a tile, both or neither: [1]; [128] (KDA) or [1] (GDN).
  float* part_a_log;
  float* part_dt_bias;
};

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_OUTPUT_CUH_
