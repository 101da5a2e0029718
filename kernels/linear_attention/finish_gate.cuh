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

// What a thread has once dG is summed over rows: one column of its warp's 16
// rows, which spares the sums over lanes.
struct FinishColumn {
  int column, row0;

  __device__ __forceinline__ explicit FinishColumn(const FinishPlace& at)
      : column(at.col0 + at.lane), row0(at.row0) {}
};

// The column of a [T,heads,128] tensor; rows behind the chunk's end repeat the
// last one.
__device__ __forceinline__ void LoadColumn(const uint16_t* from, int pitch,
                                           int length, const FinishColumn& at,
                                           uint16_t (&x)[kSub]) {
#pragma unroll
  for (int i = 0; i < kSub; ++i)
    x[i] = __ldg(from + min(at.row0 + i, length - 1) * pitch + at.column);
}

// The rows' shares of dbeta, to what WriteValues left there.
__device__ __forceinline__ void SumBeta(FinishSmem& smem, const FinishPlace& at,
                                        const float (&keys)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.row[half];
    const float sum = QuadSum((1.0f - smem.beta[row]) * keys[half]);
    if (at.quad == 0) smem.row_part[at.part][row] += sum;
  }
}

// dG, over the warp's piece of G, to its sum from below inside the sub-block;
// the sub-block's into shared memory. Then a sync, then AddLowerBlocks.
__device__ __forceinline__ void SumInsideBlock(FinishSmem& smem,
                                               const FinishPlace& at,
                                               const FinishSums& sums,
                                               float (&dg)[kSub]) {
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(smem.g + DeepOffset(at, n, half)) =
          make_float2(sums.dg[n][2 * half], sums.dg[n][2 * half + 1]);
    }
  }
  __syncwarp();
  const FinishColumn column(at);
  float sum = 0;
#pragma unroll
  for (int i = kSub - 1; i >= 0; --i) {
    sum += smem.g[Deep(column.row0 + i, column.column)];
    dg[i] = sum;
  }
  smem.partial[1 + at.block][column.column] = sum;
}
__device__ __forceinline__ void AddLowerBlocks(const FinishSmem& smem,
                                               const FinishPlace& at,
                                               float (&dg)[kSub]) {
  const int column = FinishColumn(at).column;
  float add = smem.partial[0][column];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const float lower = smem.partial[1 + b][column];
    add += smem.kept[b][column] + (b > at.block ? lower : 0.0f);
  }
#pragma unroll
  for (int i = 0; i < kSub; ++i) dg[i] += add;
}

// dz, and if `parameters` the warps' shares of the gradients of a_log and
// dt_bias. `dz` is the half's first row, `dt_bias` its first channel.
__device__ __forceinline__ void WriteGate(
    const GateMath& gate, const float* dt_bias, const FinishRows& rows,
    const FinishPlace& at, const uint16_t (&z)[kSub], const float (&dg)[kSub],
    uint16_t* dz, bool parameters, FinishSmem& smem) {
  const FinishColumn column(at);
  const float bias = dt_bias[column.column];
  float d_rate = 0, d_bias = 0;  // of a_log and of dt_bias
#pragma unroll
  for (int i = 0; i < kSub; ++i) {
    const int row = column.row0 + i;
    if (row >= rows.length) continue;
    const float x = Low(z[i]) + bias;
    const float d = dg[i] * gate.Slope(x);
    dz[row * rows.pitch + column.column] = static_cast<uint16_t>(Pack(d, 0));
    if (parameters) {
      d_bias += d;
      d_rate += dg[i] * gate.RateSlope(x);
    }
  }
  if (!parameters) return;
  smem.d_bias[at.block][column.column] = d_bias;
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
