#ifndef CADRE_KERNELS_LINEAR_ATTENTION_INVERT_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_INVERT_CUH_

// The inverse of a unit lower triangular matrix of a chunk, in shared memory.
// Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

constexpr int kInversePitch = 68;  // floats

// A pair of one row of a score matrix, zeros above the diagonal: of the one to
// invert, where the diagonal is zero, too, or of Aqk.
__device__ __forceinline__ void StoreScores(bool to_invert, float* inverse,
                                            uint16_t* aqk, int i, int j,
                                            float x0, float x1) {
  if (to_invert) {
    *reinterpret_cast<float2*>(inverse + i * kInversePitch + j) =
        make_float2(j < i ? x0 : 0.0f, j + 1 < i ? x1 : 0.0f);
  } else {
    *reinterpret_cast<uint32_t*>(aqk + Square(i, j)) =
        Pack(j <= i ? x0 : 0.0f, j + 1 <= i ? x1 : 0.0f);
  }
}
// Zeros above diagonal block b of Aqk, for the scan. By a warp.
__device__ __forceinline__ void ZeroAboveBlock(uint16_t* aqk, int b, int lane) {
  for (int piece = lane; piece < kSub * 2 * (3 - b); piece += 32) {
    *reinterpret_cast<uint4*>(aqk + Square(b * kSub + (piece & 15),
                                           (b + 1) * kSub + (piece >> 4) * 8)) =
        make_uint4(0, 0, 0, 0);
  }
}

// A operand [16,8] from shared floats of pitch kInversePitch.
__device__ __forceinline__ void LoadTf32A(uint32_t (&a)[4], const float* m,
                                          int lane) {
  const float* at = m + (lane >> 2) * kInversePitch + (lane & 3);
  a[0] = ToTf32(at[0]);
  a[1] = ToTf32(at[8 * kInversePitch]);
  a[2] = ToTf32(at[4]);
  a[3] = ToTf32(at[8 * kInversePitch + 4]);
}

// m <- (I + stril(m))^-1, in place; blocks above the diagonal
// blocks are neither read nor written. Accumulators become the A operand of the
// next product by reading B's rows in the order 0 2 4 6 1 3 5 7. Ends with a
// sync.
__device__ __forceinline__ void InvertUnitLower(float* m) {
  const int lane = threadIdx.x & 31, warp = WarpIndex();
  const int group = lane >> 2, quad = lane & 3;
  if (warp < 4) {
    // Column `lane` of the inverse of a 16x16 block, row after row.
    float* block = m + warp * kSub * (kInversePitch + 1);
    const int column = lane & 15;
    float x[kSub];
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      float row[kSub];
#pragma unroll
      for (int c = 0; c < (i + 3) / 4; ++c) {
        const float4 four =
            *reinterpret_cast<const float4*>(block + i * kInversePitch + 4 * c);
        row[4 * c] = four.x;
        row[4 * c + 1] = four.y;
        row[4 * c + 2] = four.z;
        row[4 * c + 3] = four.w;
      }
      float even = i == column ? 1.0f : 0.0f, odd = 0;
#pragma unroll
      for (int c = 0; c < i; c += 2) {
        even -= row[c] * x[c];
        if (c + 1 < i) odd -= row[c + 1] * x[c + 1];
      }
      x[i] = even + odd;
    }
    __syncwarp();
    if (lane < kSub) {
#pragma unroll
      for (int i = 0; i < kSub; ++i) block[i * kInversePitch + column] = x[i];
    }
  }
  __syncthreads();
  if (warp < 2) {
    // -D1 L10 D0 of the pair of blocks.
    float* d0 = m + warp * 2 * kSub * (kInversePitch + 1);
    float* l10 = d0 + kSub * kInversePitch;
    const float* d1 = l10 + kSub;
    float t[2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t a[4];
      LoadTf32A(a, d1 + 8 * k, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* b = l10 + (8 * k + quad) * kInversePitch + 8 * n + group;
        MmaTf32(t[n], a, ToTf32(b[0]), ToTf32(b[4 * kInversePitch]));
      }
    }
    float r[2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t a[4] = {ToTf32(-t[k][0]), ToTf32(-t[k][2]),
                             ToTf32(-t[k][1]), ToTf32(-t[k][3])};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* b =
            d0 + (8 * k + 2 * quad) * kInversePitch + 8 * n + group;
        MmaTf32(r[n], a, ToTf32(b[0]), ToTf32(b[kInversePitch]));
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float* out = l10 + group * kInversePitch + 8 * n + 2 * quad;
      out[0] = r[n][0];
      out[1] = r[n][1];
      out[8 * kInversePitch] = r[n][2];
      out[8 * kInversePitch + 1] = r[n][3];
    }
  }
  __syncthreads();
  float r[2][4] = {};
  const int row_block = warp & 1, col_block = (warp >> 1) & 1;
  float* lower = m + 2 * kSub * kInversePitch;
  if (warp < 4) {
    // Block (row_block, col_block) of -InvB L InvA, all 32x32.
    const float* inv_b = lower + 2 * kSub + row_block * kSub * kInversePitch;
    float t[4][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k >= 2 * (row_block + 1)) continue;
      uint32_t a[4];
      LoadTf32A(a, inv_b + 8 * k, lane);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float* b = lower + (8 * k + quad) * kInversePitch + 8 * n + group;
        MmaTf32(t[n], a, ToTf32(b[0]), ToTf32(b[4 * kInversePitch]));
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < 2 * col_block) continue;
      const uint32_t a[4] = {ToTf32(-t[k][0]), ToTf32(-t[k][2]),
                             ToTf32(-t[k][1]), ToTf32(-t[k][3])};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* b = m + (8 * k + 2 * quad) * kInversePitch +
                         col_block * kSub + 8 * n + group;
        MmaTf32(r[n], a, ToTf32(b[0]), ToTf32(b[kInversePitch]));
      }
    }
  }
  __syncthreads();
  if (warp < 4) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float* out = lower + (row_block * kSub + group) * kInversePitch +
                   col_block * kSub + 8 * n + 2 * quad;
      out[0] = r[n][0];
      out[1] = r[n][1];
      out[8 * kInversePitch] = r[n][2];
      out[8 * kInversePitch + 1] = r[n][3];
    }
  }
  __syncthreads();
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_INVERT_CUH_
