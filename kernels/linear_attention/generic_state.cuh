#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_STATE_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_STATE_CUH_

// The delta rule of every dtype and width: the problem as its kernels see it, a
// token's operands, and a state in registers. Device code; private to
// delta_rule_generic.cu.
//
// Columns of the state never mix. A warp holds 4 of them, its lanes share the
// key channels, so a sum over keys is a warp reduction and the forward needs no
// barrier. Only the gradients of q, k and the decay sum over columns: the
// backward takes 32 columns at a time, adds up the warps of a block in order,
// and the passes over columns one after the other.

#include <cstdint>

#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"

namespace cadre::linear_attention::generic {

constexpr int kColumns = 4;  // of a warp
constexpr int kWarps = 8;    // of a block
constexpr int kTile = kColumns * kWarps;
constexpr int kChunk = 64;  // tokens between the states that are kept

template <typename T>
struct Problem {
  const T* q;
  const T* k;
  const T* v;
  const T* z;      // null: `a`
  const float* a;  // null: `z`
  const float* beta;
  const float* a_log;
  const float* dt_bias;
  const int32_t* cu;
  const float* initial_state;
  int64_t tokens;
  int docs, heads, key_heads, key_dim, value_dim;
  bool bounded;
  float bound, scale;

  __device__ int64_t KeyRow(int64_t t, int h) const {
    return (t * key_heads + h / (heads / key_heads)) * key_dim;
  }
  __device__ int64_t ValueRow(int64_t t, int h) const {
    return (t * heads + h) * value_dim;
  }
  // State element (i, column) of a document and head.
  __device__ int64_t State(int doc, int h, int i, int column) const {
    return ((int64_t(doc) * heads + h) * key_dim + i) * value_dim + column;
  }
  __device__ float Logit(int64_t t, int h, int i) const {
    return z != nullptr ? ToFloat(z[(t * heads + h) * key_dim + i]) +
                              dt_bias[h * key_dim + i]
                        : a[t * heads + h] + dt_bias[h];
  }
  __device__ float LogDecay(int h, float x) const {
    const float rate = expf(a_log[h]);
    return bounded ? bound * device::Sigmoid(rate * x)
                   : -rate * device::Softplus(x);
  }
  // d LogDecay / dx.
  __device__ float Slope(int h, float x) const {
    const float rate = expf(a_log[h]);
    if (!bounded) return -rate * device::SoftplusGrad(x);
    const float s = device::Sigmoid(rate * x);
    return bound * s * (1 - s) * rate;
  }
  // d LogDecay / d a_log.
  __device__ float RateSlope(int h, float x) const {
    return bounded ? Slope(h, x) * x : LogDecay(h, x);
  }
};

// One token's operands, as a lane holds them: key channels lane + 32 j.
template <typename T, int kRows>
struct Token {
  float q[kRows], k[kRows], decay[kRows], v[kColumns], beta;

  __device__ Token(const Problem<T>& p, int64_t t, int h, int column) {
    const int lane = threadIdx.x % 32;
    const int64_t row = p.KeyRow(t, h);
    const float shared_decay =
        p.z == nullptr ? expf(p.LogDecay(h, p.Logit(t, h, 0))) : 0;
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int i = lane + 32 * j;
      q[j] = k[j] = decay[j] = 0;
      if (i >= p.key_dim) continue;
      q[j] = p.scale * ToFloat(p.q[row + i]);
      k[j] = ToFloat(p.k[row + i]);
      decay[j] =
          p.z == nullptr ? shared_decay : expf(p.LogDecay(h, p.Logit(t, h, i)));
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      v[c] = column + c < p.value_dim
                 ? ToFloat(p.v[p.ValueRow(t, h) + column + c])
                 : 0;
    }
    beta = device::Sigmoid(p.beta[t * p.heads + h]);
  }
};

template <int kRows>
using State = float[kRows][kColumns];

template <typename T, int kRows>
__device__ void LoadState(const Problem<T>& p, const float* from, int doc,
                          int h, int column, State<kRows>& s) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int i = threadIdx.x % 32 + 32 * j;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      s[j][c] = from != nullptr && i < p.key_dim && column + c < p.value_dim
                    ? from[p.State(doc, h, i, column + c)]
                    : 0;
    }
  }
}

template <typename T, int kRows>
__device__ void StoreState(const Problem<T>& p, const State<kRows>& s, int doc,
                           int h, int column, float* to) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int i = threadIdx.x % 32 + 32 * j;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (i < p.key_dim && column + c < p.value_dim)
        to[p.State(doc, h, i, column + c)] = s[j][c];
    }
  }
}

// sums[c] = sum over key channels of x[i] s[i][c].
template <int kRows>
__device__ void ReadState(const State<kRows>& s, const float (&x)[kRows],
                          float (&sums)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kRows; ++j) sum += x[j] * s[j][c];
    sums[c] = WarpSum(sum);
  }
}

template <int kRows>
__device__ void Decay(const float (&decay)[kRows], State<kRows>& s) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) s[j][c] *= decay[j];
  }
}

// s += x y^T.
template <int kRows>
__device__ void AddOuter(const float (&x)[kRows], const float (&y)[kColumns],
                         State<kRows>& s) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) s[j][c] += x[j] * y[c];
  }
}

// Takes a token's value into the decayed state. e: what the state was off by,
// beta aside.
template <typename T, int kRows>
__device__ void WriteToken(const Token<T, kRows>& token, State<kRows>& s,
                           float (&e)[kColumns]) {
  ReadState(s, token.k, e);
  float write[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    e[c] = token.v[c] - e[c];
    write[c] = token.beta * e[c];
  }
  AddOuter(token.k, write, s);
}

}  // namespace cadre::linear_attention::generic

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_STATE_CUH_
