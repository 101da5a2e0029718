#ifndef CADRE_KERNELS_LINEAR_ATTENTION_DECAYS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_DECAYS_CUH_

// Elementwise work on a chunk: which thread has which elements, and the
// cumulated decays. Device code; private to kernels/kda.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

// The four columns and kRows rows, all of one sub-block, that a thread works on
// elementwise; a warp covers rows of kWidth, two of them if that is 64.
template <int kRows, int kWidth = kDim>
struct Columns {
  int col;    // first column
  int group;  // rows [group kRows, (group + 1) kRows)
  int sub;
  __device__ Columns(int lane, int warp)
      : col(lane * 4 % kWidth),
        group(warp * (kDim / kWidth) + lane * 4 / kWidth),
        sub(warp * (kDim / kWidth) / (kSub / kRows)) {}
  __device__ int row(int i) const { return group * kRows + i; }
};

// Four bf16 of each of the thread's rows; those behind the chunk's end repeat
// its last one. `from` is the head's first row.
template <int kRows, int kWidth>
__device__ __forceinline__ void LoadFours(const uint16_t* from, int pitch,
                                          int length,
                                          const Columns<kRows, kWidth>& at,
                                          uint2 (&x)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    x[i] = *reinterpret_cast<const uint2*>(
        from + min(at.row(i), length - 1) * pitch + at.col);
  }
}
__device__ __forceinline__ void Unpack(uint2 four, float (&x)[4]) {
  x[0] = Low(four.x);
  x[1] = High(four.x);
  x[2] = Low(four.y);
  x[3] = High(four.y);
}
__device__ __forceinline__ uint2 PackFour(float a, float b, float c, float d) {
  uint2 four;
  four.x = Pack(a, b);
  four.y = Pack(c, d);
  return four;
}
__device__ __forceinline__ void LoadFloats(const float* from, float (&x)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  x[0] = four.x;
  x[1] = four.y;
  x[2] = four.z;
  x[3] = four.w;
}

// Running sums of log-decays over the thread's rows.
template <bool kBounded, int kRows, int kWidth>
__device__ __forceinline__ void SumRows(const GateMath& gate, int length,
                                        const Columns<kRows, kWidth>& at,
                                        const uint2 (&z)[kRows],
                                        const float (&bias)[4],
                                        float (&g)[kRows][4]) {
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float x[4];
    Unpack(z[i], x);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float decay = gate.template Decay<kBounded>(x[c] + bias[c]);
      sum[c] += at.row(i) < length ? decay : 0.0f;
      g[i][c] = sum[c];
    }
  }
}

// G inside the sub-block for the thread's rows and columns, of kWidth channels
// of the head from `first` on, from z. Leaves border, fall and steep complete
// (syncs). `parked` [64 / kRows] is scratch.
template <int kRows, int kWidth>
__device__ __forceinline__ void SumDecays(
    const Problem& p, int length, int head, int first,
    const Columns<kRows, kWidth>& at, const uint2 (&z)[kRows],
    float (&g)[kRows][4], float (*parked)[kWidth], float (*border)[kWidth],
    float (*fall)[kWidth], int* steep) {
  constexpr int kGroups = kSub / kRows;  // in a sub-block
  const GateMath gate{Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded};
  const int tid = threadIdx.x;
  if (tid < 4) steep[tid] = 0;
  float bias[4];
  LoadFloats(p.dt_bias + head * kDim + first + at.col, bias);
  if (p.bounded) {
    SumRows<true>(gate, length, at, z, bias, g);
  } else {
    SumRows<false>(gate, length, at, z, bias, g);
  }
  *reinterpret_cast<float4*>(&parked[at.group][at.col]) = make_float4(
      g[kRows - 1][0], g[kRows - 1][1], g[kRows - 1][2], g[kRows - 1][3]);
  __syncthreads();
  float before[4] = {}, total[4] = {};
  for (int b = 0; b < at.sub * kGroups; ++b) {
    float x[4];
    LoadFloats(&parked[b][at.col], x);
#pragma unroll
    for (int c = 0; c < 4; ++c) before[c] += x[c];
  }
#pragma unroll
  for (int b = 0; b < kGroups; ++b) {
    float x[4];
    LoadFloats(&parked[at.sub * kGroups + b][at.col], x);
    const bool above = b < at.group % kGroups;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      total[c] += x[c];
      if (above) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) g[i][c] += x[c];
      }
    }
  }
  if (at.group % kGroups == 0) {
    if (fminf(fminf(total[0], total[1]), fminf(total[2], total[3])) < -kMaxFall)
      steep[at.sub] = 1;
    *reinterpret_cast<float4*>(&border[at.sub][at.col]) =
        make_float4(before[0], before[1], before[2], before[3]);
    if (at.sub == 3) {
      *reinterpret_cast<float4*>(&border[4][at.col]) =
          make_float4(before[0] + total[0], before[1] + total[1],
                      before[2] + total[2], before[3] + total[3]);
    }
    *reinterpret_cast<float4*>(&fall[at.sub][at.col]) = make_float4(
        Exp2(total[0]), Exp2(total[1]), Exp2(total[2]), Exp2(total[3]));
  }
  __syncthreads();
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_DECAYS_CUH_
