#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_

// The last part of the backward: gradients of one chunk from the states and
// their gradients around it. One block of 512 threads for each (chunk, head).
// Private to kernels/kda; kernels/gdn has head_finish.cuh.
//
//   dq1 = K^-1/2 (dO S^T) exp(G)     dkN = (X dS^T) exp(Gn - G)
//   dw = -dX S^T     dAqk = tril(K^-1/2 dO X^T)
//   v' = Inv^T dX    k' = Inv^T dw   dv = beta v'
//   M = stril(dX v^T + dw (exp(G) k)^T) diag(beta)
//   dAkk = -stril(Inv^T M Inv^T)
//   aq_i = sum_{j<=i} dAqk_ij exp(G_i - G_j) k_j     ak_i likewise of dAkk
//   kt_j = sum_{i>=j} exp(G_i - G_j) (dAqk_ij q_i + dAkk_ij beta_i k_i)
//   dq = dq1 + aq       dk = dkN + beta exp(G) k' + beta ak + kt
//   dbeta = <v', v> + <k', exp(G) k> + <ak, k>
//   dG = q dq - k dkN + beta exp(G) k k' + beta k ak - k kt, and in the last
//   row exp(Gn) rowsum(S dS) + colsum(k dkN);  dg is its sum from below.
// The sums with exp(G_i - G_j) run from sub-block to sub-block, what is summed
// so far decaying on the way, in tf32: bf16 would be seen in dg.
//
// A warp owns a 16x32 piece of every [64,128] result, in accumulators.

#include "kernels/linear_attention/finish_gate.cuh"
#include "kernels/linear_attention/finish_load.cuh"
#include "kernels/linear_attention/finish_scores.cuh"
#include "kernels/linear_attention/finish_states.cuh"
#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// dG summed, and what comes of it. The chunk is looked up again: registers are
// too short to keep it.
__device__ __forceinline__ void EndFinish(const Problem& p,
                                          const FinishOutput& out,
                                          FinishSums& sums, FinishSmem& smem) {
  const int block = BlockIndexAgain();
  const int head = p.first_head + block % p.num_heads;
  const int chunk_index = block / p.num_heads;
  const Chunk chunk = p.chunks[chunk_index];
  const FinishPlace at(chunk.length);
  uint32_t z[4][2];
  LoadGate(p, chunk, head, at, z);
  SumInsideBlock(smem, at, sums);
  __syncthreads();
  AddLowerBlocks(smem, at, sums);
  WriteBeta(p, chunk, head, smem, out.dbeta);
  WriteGate(p, chunk, head, p.tile(chunk_index, head), out, at, z, sums, smem);
}

__device__ __forceinline__ void FinishChunk(const Problem& p,
                                            const FinishOutput& out,
                                            FinishSmem& smem) {
  const int head = p.first_head + blockIdx.x % p.num_heads;
  const int chunk_index = blockIdx.x / p.num_heads;
  const Chunk chunk = p.chunks[chunk_index];
  if (chunk.length == 0) return;
  const int64_t tile = p.tile(chunk_index, head);

  StartLoads(p, chunk, head, tile, smem);
  PrepareFinish(p, chunk, head, smem);
  // Worked out anew for each part: what the compiler derives from it would
  // otherwise live, and spill, from the first part to the last.
  const auto place = [&chunk] { return FinishPlace(chunk.length); };
  FinishSums sums = {};
  MultiplyStates(smem, place(), sums);
  SumStates(smem);
  __syncthreads();

  // s, ds, d_o and x are dead.
  CopyRows(smem.inv.q, p.q + p.key_row(chunk.begin, head), p.key_pitch(),
           chunk.length);
  CopyRows(smem.inv.k, p.k + p.key_row(chunk.begin, head), p.key_pitch(),
           chunk.length);
  CopyAsyncCommit();
  float read[4][4] = {};  // k'
  {
    const FinishPlace at = place();
    MultiplyValues(smem, at, sums);
    MultiplyWrites(smem, at);
    MultiplyInverse(read, smem.inverse, smem.dw, at.block, at.col0, at.lane);
  }
  CopyAsyncWait<0>();
  __syncthreads();

  // dw and ke are dead.
  {
    const FinishPlace at = place();
    MultiplyInverseRight(smem, at);
    AddKeys(smem, at, read, sums);
  }
  WriteValues(p, chunk, head, out.dv, smem);
  __syncthreads();

  // Dead: all of inv but q and k.
  MultiplyInverseLeft(smem, place());
  SumLastRow(smem);
  MakeOperands(smem);
  __syncthreads();

  AddAbove(smem, place(), chunk.length, sums);
  WriteKeys(p, chunk, head, place(), sums.dq, out.dq);
  AddKeysAbove(smem, place(), chunk.length, sums);
  AddInside(smem, place(), chunk.length, sums);
  AddBelow(smem, place(), sums);
  WriteKeys(p, chunk, head, place(), sums.dk, out.dk);
  EndFinish(p, out, sums, smem);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
