#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_

// The last part of the backward: gradients of one chunk from the states and
// their gradients around it. A cluster of two blocks of 256 threads for each
// (chunk, head), each with half of the channels of K and half of the columns of
// V. Private to kernels/kda; kernels/gdn has head_finish.cuh.
//
//   dw = -dX S^T     dAqk = tril(K^-1/2 dO X^T)
//   v' = Inv^T dX    k' = Inv^T dw   dv = beta v'
//   M = stril(dX v^T + dw (exp(G) k)^T) diag(beta)
//   dAkk = -stril(Inv^T M Inv^T)
//   dq_i = exp(G_i) K^-1/2 (dO S^T)_i + sum_{j<=i} dAqk_ij exp(G_i - G_j) k_j
//   ak_i = exp(G_i) beta_i k'_i
//          + sum_{j<i} beta_i dAkk_ij exp(G_i - G_j) k_j
//   kt_j = exp(Gn - G_j) (X dS^T)_j + sum_{i>=j} dAqk_ij exp(G_i - G_j) q_i
//          + sum_{i>j} beta_i dAkk_ij exp(G_i - G_j) k_i
//   dk = ak + kt      dG = q dq + k ak - k kt
//   dbeta = <v', v> + <k, ak> / beta
// and in the last row of dG exp(Gn) rowsum(S dS) + colsum(k exp(Gn-G) X dS^T);
// dg is its sum from below.
// The sums with exp(G_i - G_j) run from sub-block to sub-block, what is summed
// so far, the states' part first, decaying on the way. The only thing that one
// block needs from the other is its part of M's sum over channels.

#include "kernels/linear_attention/finish_gate.cuh"
#include "kernels/linear_attention/finish_load.cuh"
#include "kernels/linear_attention/finish_scores.cuh"
#include "kernels/linear_attention/finish_states.cuh"
#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// Everything into shared memory and the products with the states; what is left
// there are operands. The states' tiles are dead from the first sync on.
__device__ __forceinline__ void StartFinish(const Problem& p,
                                            const FinishJob& job,
                                            FinishSmem& smem, FinishSums& sums,
                                            uint32_t (&d_aqk)[2][4]) {
  const int half = ClusterRank(), first = half * kFinishDim;
  const FinishColumns at(threadIdx.x & 31, WarpIndex());
  uint2 z[4], q[4], k[4];
  const FinishRows rows = RowsOfJob(p, job, half);
  LoadFours(p.z + p.row(job.begin, job.head) + first, p.pitch(), job.length, at,
            z);
  StartLoads(p, job, half, smem);
  LoadBeta(p, job, smem);
  float g[4][4];
  SumDecays(p, job.length, job.head, first, at, z, g, smem.parked, smem.border,
            smem.fall, smem.steep);
  LoadFours(rows.q, rows.pitch, job.length, at, q);
  LoadFours(rows.k, rows.pitch, job.length, at, k);
  CopyAsyncWait<0>();
  FenceAsyncShared();
  BarrierWait(&smem.loaded, 0);
  __syncthreads();
  MultiplyStates(smem, FinishPlace(), sums, d_aqk);
  __syncthreads();
  ClusterArrive();
  SumLastRow(smem);
  MakeOperands(smem, smem.job.length, at, g, q, k);
  FenceAsyncShared();
  __syncthreads();
}

// Both score matrices' gradients, dv, and ak's start.
__device__ __forceinline__ void FinishWrites(const Problem& p, uint16_t* dv,
                                             FinishSmem& smem,
                                             const uint32_t (&d_aqk)[2][4],
                                             FinishSums& sums) {
  const int half = ClusterRank();
  {
    const FinishPlace at;
    float m[4][4], values[4][4];
    MultiplyWrites(smem, at, half, m, values, sums.ak);
    ClusterWait();  // the other block's states are dead, too
    SendWrites(smem, at, half, m);
    WgmmaWait<0>();
    Pin(values);
    Pin(sums.ak);
    WriteValues(smem, at,
                dv + p.row(smem.job.begin, smem.job.head) + half * kFinishDim,
                p.pitch(), smem.job.length, values);
#pragma unroll
    for (int half_row = 0; half_row < 2; ++half_row) {
      const float beta = smem.beta[at.row[half_row]];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        sums.ak[n][2 * half_row] *= beta;
        sums.ak[n][2 * half_row + 1] *= beta;
      }
    }
    BarrierWait(&smem.exchanged[0], 0);
    __syncthreads();  // dx, dw and v are dead
    StoreWrites(smem, at, m);
    StoreRows(smem.d_aqk, at, d_aqk);
  }
  FenceAsyncShared();
  __syncthreads();
  MultiplyInverseRight(smem, FinishPlace());
  FenceAsyncShared();
  __syncthreads();
  MultiplyInverseLeft(smem, FinishPlace());
  __syncthreads();
}

// dq.
__device__ __forceinline__ void FinishQueries(const Problem& p, uint16_t* dq,
                                              FinishSmem& smem,
                                              FinishSums& sums) {
  float keys[2];
  AddAbove(p, smem, FinishPlace(), sums, keys);
  SumBeta(smem, FinishPlace(), keys);
  const FinishRows rows = RowsOfJob(p, smem.job, ClusterRank());
  WriteKeys(FinishPlace(), rows, sums.dq, dq + (rows.q - p.q));
}

// dk, and what remains of z's gradient.
__device__ __forceinline__ void FinishKeys(const Problem& p,
                                           const FinishOutput& out,
                                           FinishSmem& smem, FinishSums& sums) {
  float dg[kSub];
  uint16_t z[kSub];
  {
    const FinishRows rows = RowsOfJob(p, smem.job, ClusterRank());
    LoadColumn(p.z + (rows.q - p.q), rows.pitch, rows.length,
               FinishColumn(FinishPlace()), z);
    AddBelow(smem, FinishPlace(), rows, sums);
    WriteKeys(FinishPlace(), rows, sums.ak, out.dk + (rows.q - p.q));
    SumInsideBlock(smem, FinishPlace(), sums, dg);
  }
  __syncthreads();
  AddLowerBlocks(smem, FinishPlace(), dg);
  const int half = ClusterRank(), head = smem.job.head;
  const FinishRows rows = RowsOfJob(p, smem.job, half);
  WriteGate({Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded},
            p.dt_bias + head * kDim + half * kFinishDim, rows, FinishPlace(), z,
            dg, out.dz + (rows.q - p.q), out.part_dt_bias != nullptr, smem);
  __syncthreads();
  WriteSums(p, half, out, smem);
}

__device__ __forceinline__ void FinishChunk(const Problem& p,
                                            const FinishOutput& out,
                                            FinishSmem& smem) {
  FinishSums sums;
  {
    const int task = blockIdx.x / 2, chunk_index = task / p.num_heads;
    const int head = p.first_head + task % p.num_heads;
    const Chunk chunk = p.chunks[chunk_index];
    if (chunk.length == 0) return;
    uint32_t d_aqk[2][4];
    StartFinish(p,
                {.begin = chunk.begin,
                 .length = chunk.length,
                 .head = head,
                 .tile = static_cast<int>(p.tile(chunk_index, head))},
                smem, sums, d_aqk);
    FinishWrites(p, out.dv, smem, d_aqk, sums);
  }
  FinishQueries(p, out.dq, smem, sums);
  FinishKeys(p, out, smem, sums);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
