#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_

// How finish.cuh gets at its inputs, and the gate worked out again. Device
// code; private to kernels/kda.

#include "kernels/linear_attention/finish_tiles.cuh"

namespace cadre::linear_attention {

// Rows of a [T,heads,128] tensor into a wide tile, zeros behind the end.
__device__ __forceinline__ void CopyRows(uint16_t* tile, const uint16_t* from,
                                         int pitch, int length) {
#pragma unroll
  for (int i = 0; i < kTile / 8 / kFinishThreads; ++i) {
    const int row = i * (kFinishThreads / 16) + (threadIdx.x >> 4);
    const int col = (threadIdx.x & 15) * 8;
    const bool valid = row < length;
    CopyAsync16(tile + Wide(row, col), from + (valid ? row : 0) * pitch + col,
                valid);
  }
}

// Tiles of the states and of the scan on their way, dO and v too.
__device__ __forceinline__ void StartLoads(const Problem& p, const Chunk& chunk,
                                           int head, int64_t tile,
                                           FinishSmem& smem) {
  if (threadIdx.x == 0) {
    BarrierInit(&smem.loaded, 1);
    BarrierInitFence();
    constexpr uint32_t kBytes = 2 * (2 * kState + 2 * kTile + kSquare);
    BarrierExpect(&smem.loaded, kBytes);
    BulkCopy(smem.in.s, p.s + tile * kState, kState * 2, &smem.loaded);
    BulkCopy(smem.in.ds, p.ds + tile * kState, kState * 2, &smem.loaded);
    BulkCopy(smem.in.x, p.u + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.in.dx, p.dx + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.inverse, p.inverse + tile * kSquare, kSquare * 2,
             &smem.loaded);
  }
  CopyRows(smem.in.d_o, p.d_o + p.row(chunk.begin, head), p.pitch(),
           chunk.length);
  CopyRows(smem.in.v, p.v + p.row(chunk.begin, head), p.pitch(), chunk.length);
  CopyAsyncCommit();
}

// beta, G and exp(G) k; when this returns, everything has arrived.
__device__ __forceinline__ void PrepareFinish(const Problem& p,
                                              const Chunk& chunk, int head,
                                              FinishSmem& smem) {
  const int tid = threadIdx.x;
  if (tid < kChunk) {
    float b = 0;
    if (tid < chunk.length) {
      const float logit =
          p.beta[static_cast<int64_t>(chunk.begin + tid) * p.heads + head];
      b = Reciprocal(1.0f + Exp2(-kLog2E * logit));
    }
    smem.beta[tid] = b;
  }
  const Columns<4> at(tid & 31, WarpIndex());
  const uint16_t* from_k = p.k + p.key_row(chunk.begin, head);
  uint2 keys[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    keys[i] = LoadFour(from_k, p.key_pitch(), chunk.length, at, i);
  float g[4][4];
  SumDecays<4>(p, chunk, head, at, g,
               reinterpret_cast<float(*)[kDim]>(smem.d_aqk), smem.border,
               smem.fall, smem.steep);
  float here[4];
  LoadFloats(&smem.border[at.sub][at.col], here);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float4*>(&smem.g[Deep(at.row(i), at.col)]) =
        make_float4(g[i][0], g[i][1], g[i][2], g[i][3]);
    float k[4];
    Unpack(keys[i], k);
    *reinterpret_cast<uint2*>(&smem.ke[Wide(at.row(i), at.col)]) = PackFour(
        k[0] * Exp2(g[i][0] + here[0]), k[1] * Exp2(g[i][1] + here[1]),
        k[2] * Exp2(g[i][2] + here[2]), k[3] * Exp2(g[i][3] + here[3]));
  }
  CopyAsyncWait<0>();
  BarrierWait(&smem.loaded, 0);
  __syncthreads();
}

// Operands of the sums inside the chunk, from q and k in shared memory.
__device__ __forceinline__ void MakeOperands(FinishSmem& smem) {
  const Columns<4> at(threadIdx.x & 31, WarpIndex());
  float fall[4], next[4];
  LoadFloats(&smem.border[at.sub][at.col], fall);
  LoadFloats(&smem.border[at.sub + 1][at.col], next);
#pragma unroll
  for (int c = 0; c < 4; ++c) fall[c] = next[c] - fall[c];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float q[4], k[4], g[4], kn[4];
    const int from = Wide(at.row(i), at.col), to = Deep(at.row(i), at.col);
    Unpack(*reinterpret_cast<const uint2*>(smem.deep.q + from), q);
    Unpack(*reinterpret_cast<const uint2*>(smem.deep.k + from), k);
    LoadFloats(&smem.g[to], g);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kn[c] = k[c] * Exp2(fall[c] - g[c]);
      const float since = Exp2(g[c]);
      q[c] *= since;
      k[c] *= since;
    }
    const auto put = [to](float* tile, const float(&x)[4]) {
      *reinterpret_cast<float4*>(tile + to) =
          make_float4(Tf32(x[0]), Tf32(x[1]), Tf32(x[2]), Tf32(x[3]));
    };
    put(smem.deep.kn, kn);
    put(smem.deep.qp, q);
    put(smem.deep.kp, k);
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_LOAD_CUH_
