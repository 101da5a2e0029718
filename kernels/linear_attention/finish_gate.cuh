#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_

// The end of finish.cuh: gradients out, dG summed to dg, dbeta and the gate's
// own gradients. Device code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// dq or dk.
__device__ __forceinline__ void WriteKeys(const Problem& p, const Chunk& chunk,
                                          int head, const FinishPlace& at,
                                          const float (&d)[4][4],
                                          uint16_t* to) {
  to += p.key_row(chunk.begin, head) + at.col;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!at.live[half]) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<uint32_t*>(to + at.row[half] * p.key_pitch() + 8 * n) =
          Pack(d[n][2 * half], d[n][2 * half + 1]);
    }
  }
}

// The thread's z, early enough to be there at the end.
__device__ __forceinline__ void LoadGate(const Problem& p, const Chunk& chunk,
                                         int head, const FinishPlace& at,
                                         uint32_t (&z)[4][2]) {
  const uint16_t* from = p.z + p.row(chunk.begin, head) + at.col;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(at.row[half], chunk.length - 1);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      z[n][half] =
          *reinterpret_cast<const uint32_t*>(from + row * p.pitch() + 8 * n);
    }
  }
}

// dG to its sum from below, inside the block; the blocks' sums and the rows'
// shares of dbeta into shared memory. Then a sync, then AddLowerBlocks.
__device__ __forceinline__ void SumInsideBlock(FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float upper = sums.dg[n][e], lower = sums.dg[n][2 + e];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const float u = __shfl_down_sync(0xffffffffu, upper, step);
        const float l = __shfl_down_sync(0xffffffffu, lower, step);
        if (at.lane + step < 32) {
          upper += u;
          lower += l;
        }
      }
      upper += __shfl_sync(0xffffffffu, lower, at.quad);
      sums.dg[n][e] = upper;
      sums.dg[n][2 + e] = lower;
      if (at.group == 0) smem.partial[1 + at.block][at.col + 8 * n + e] = upper;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float b = smem.beta[at.row[half]];
    const float sum = QuadSum(
        (1.0f - b) * (b * sums.row_sum[half] + sums.row_sum_scaled[half]));
    if (at.quad == 0) smem.row_part[at.part][at.row[half]] = sum;
  }
}
__device__ __forceinline__ void AddLowerBlocks(const FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float2 add = ColumnPair(smem.partial[0], at, n);
    for (int b = 3; b > at.block; --b) {
      const float2 more = ColumnPair(smem.partial[1 + b], at, n);
      add.x += more.x;
      add.y += more.y;
    }
    sums.dg[n][0] += add.x;
    sums.dg[n][1] += add.y;
    sums.dg[n][2] += add.x;
    sums.dg[n][3] += add.y;
  }
}

__device__ __forceinline__ void WriteBeta(const Problem& p, const Chunk& chunk,
                                          int head, const FinishSmem& smem,
                                          float* dbeta) {
  const int tid = threadIdx.x;
  if (tid >= chunk.length) return;
  dbeta[static_cast<int64_t>(chunk.begin + tid) * p.heads + head] =
      smem.row_part[0][tid] + smem.row_part[1][tid] + smem.row_part[2][tid] +
      smem.row_part[3][tid];
}

// dz, and the tile's shares of the gradients of a_log and dt_bias. d_aqk is
// scratch.
__device__ __forceinline__ void WriteGate(
    const Problem& p, const Chunk& chunk, int head, int64_t tile,
    const FinishOutput& out, const FinishPlace& at, const uint32_t (&z)[4][2],
    const FinishSums& sums, FinishSmem& smem) {
  const GateMath gate{Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded};
  const bool parameters = out.part_dt_bias != nullptr;
  float d_rate = 0;  // of a_log
  uint16_t* to = out.dz + p.row(chunk.begin, head) + at.col;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 bias = ColumnPair(p.dt_bias + head * kDim, at, n);
    float d_bias[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!at.live[half]) continue;
      const float x0 = Low(z[n][half]) + bias.x;
      const float x1 = High(z[n][half]) + bias.y;
      const float d0 = sums.dg[n][2 * half] * gate.Slope(x0);
      const float d1 = sums.dg[n][2 * half + 1] * gate.Slope(x1);
      *reinterpret_cast<uint32_t*>(to + at.row[half] * p.pitch() + 8 * n) =
          Pack(d0, d1);
      if (parameters) {
        d_bias[0] += d0;
        d_bias[1] += d1;
        d_rate += sums.dg[n][2 * half] * gate.RateSlope(x0) +
                  sums.dg[n][2 * half + 1] * gate.RateSlope(x1);
      }
    }
    if (parameters) {
      d_bias[0] = GroupSum(d_bias[0]);
      d_bias[1] = GroupSum(d_bias[1]);
      if (at.group == 0) {
        smem.d_aqk[at.block * kDim + at.col + 8 * n] = d_bias[0];
        smem.d_aqk[at.block * kDim + at.col + 8 * n + 1] = d_bias[1];
      }
    }
  }
  if (!parameters) return;
  for (int mask = 16; mask > 0; mask /= 2) d_rate += ShuffleXor(d_rate, mask);
  if (at.lane == 0) smem.d_aqk[4 * kDim + at.warp] = d_rate;
  __syncthreads();
  const int tid = threadIdx.x;
  if (tid < kDim) {
    out.part_dt_bias[tile * kDim + tid] =
        smem.d_aqk[tid] + smem.d_aqk[kDim + tid] + smem.d_aqk[2 * kDim + tid] +
        smem.d_aqk[3 * kDim + tid];
  }
  if (tid == 0) {
    float sum = 0;
    for (int i = 0; i < kFinishThreads / 32; ++i)
      sum += smem.d_aqk[4 * kDim + i];
    out.part_a_log[tile] = sum;
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_
