#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_

// The end of finish.cuh: gradients out, dG summed to dg, dbeta and the gate's
// own gradients. Device code; private to kernels/kda.

#include "kernels/linear_attention/finish_scores.cuh"
#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// dq or dk; `to` is the head's and the half's first row.
__device__ __forceinline__ void WriteKeys(const FinishPlace& at,
                                          const FinishRows& rows,
                                          const float (&d)[4][4],
                                          uint16_t* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (at.row[half] >= rows.length) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      *reinterpret_cast<uint32_t*>(to + at.row[half] * rows.pitch + at.col +
                                   8 * n) =
          Pack(d[n][2 * half], d[n][2 * half + 1]);
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
    const float sum = QuadSum(sums.values[half] + (1.0f - b) * sums.keys[half]);
    if (at.quad == 0) smem.row_part[at.part][at.row[half]] = sum;
  }
}
__device__ __forceinline__ void AddLowerBlocks(const FinishSmem& smem,
                                               const FinishPlace& at,
                                               FinishSums& sums) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    float2 add = ColumnPair(smem.partial[0], at, n);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float2 kept = ColumnPair(smem.kept[b], at, n);
      add.x += kept.x;
      add.y += kept.y;
    }
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

// The thread's z, early enough to be there at the end.
__device__ __forceinline__ void LoadGate(const uint16_t* from, int pitch,
                                         int length, const FinishPlace& at,
                                         uint32_t (&z)[4][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      z[n][half] = LoadPair(from, pitch, length, at, n, half);
  }
}

// dz, and if `parameters` the warps' shares of the gradients of a_log and
// dt_bias. `dz` is the half's first row, `dt_bias` its first channel.
__device__ __forceinline__ void WriteGate(
    const GateMath& gate, const float* dt_bias, const FinishRows& rows,
    const FinishPlace& at, const uint32_t (&z)[4][2], uint16_t* dz,
    bool parameters, const FinishSums& sums, FinishSmem& smem) {
  uint16_t* to = dz + at.col;
  float d_rate = 0;  // of a_log
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 bias = ColumnPair(dt_bias, at, n);
    float d_bias[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (at.row[half] >= rows.length) continue;
      const float x0 = Low(z[n][half]) + bias.x;
      const float x1 = High(z[n][half]) + bias.y;
      const float d0 = sums.dg[n][2 * half] * gate.Slope(x0);
      const float d1 = sums.dg[n][2 * half + 1] * gate.Slope(x1);
      *reinterpret_cast<uint32_t*>(to + at.row[half] * rows.pitch + 8 * n) =
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
        *reinterpret_cast<float2*>(&smem.d_bias[at.block][at.col + 8 * n]) =
            make_float2(d_bias[0], d_bias[1]);
      }
    }
  }
  if (!parameters) return;
  for (int mask = 16; mask > 0; mask /= 2) d_rate += ShuffleXor(d_rate, mask);
  if (at.lane == 0) smem.rate[at.part * 4 + at.block] = d_rate;
}

// What both blocks of the cluster have a share of: dbeta, and the tile's share
// of the gradient of a_log; and that of dt_bias.
__device__ __forceinline__ void WriteSums(const Problem& p, int half,
                                          const FinishOutput& out,
                                          FinishSmem& smem) {
  const int tid = ThreadIndexAgain();
  if (tid > kChunk) return;
  const bool parameters = out.part_dt_bias != nullptr;
  const int64_t tile = smem.job.tile;
  float sum = 0;
  if (tid < kChunk) {
    sum = smem.row_part[0][tid] + smem.row_part[1][tid];
    if (parameters) {
      out.part_dt_bias[tile * kDim + half * kFinishDim + tid] =
          smem.d_bias[0][tid] + smem.d_bias[1][tid] + smem.d_bias[2][tid] +
          smem.d_bias[3][tid];
    }
  } else if (parameters) {
    for (int i = 0; i < kFinishThreads / 32; ++i) sum += smem.rate[i];
  }
  float* other = tid < kChunk ? &smem.other_beta[tid] : &smem.other_rate;
  if (half == 1) {
    StorePeer(PeerAddress(other, 0), sum, PeerAddress(&smem.exchanged[1], 0));
    return;
  }
  BarrierWait(&smem.exchanged[1], 0);
  sum += *other;
  if (tid < smem.job.length) {
    out.dbeta[static_cast<int64_t>(smem.job.begin + tid) * p.heads +
              smem.job.head] = sum;
  } else if (tid == kChunk && parameters) {
    out.part_a_log[tile] = sum;
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_GATE_CUH_
