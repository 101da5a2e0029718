#ifndef CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_BACKWARD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_BACKWARD_CUH_

// The backward walk of delta_rule_generic.cu: gradients of each value head, to
// be finished by generic_finish.cuh. Device code; private to that file.

#include "kernels/linear_attention/generic_state.cuh"

namespace cadre::linear_attention::generic {

// What the walk leaves, f32, in the workspace.
struct Sums {
  float* dq;
  float* dk;
  float* dlog;
  float* dbeta;
  float* starts;
  float* decayed;
};

// Thread-private slots of state size, side by side for the block's threads.
template <int kRows>
__device__ void Keep(const State<kRows>& s, float* slots, int64_t slot) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      slots[((slot * kRows + j) * kColumns + c) * 32 * kWarps + threadIdx.x] =
          s[j][c];
  }
}
template <int kRows>
__device__ void Recall(const float* slots, int64_t slot, State<kRows>& s) {
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      s[j][c] = slots[((slot * kRows + j) * kColumns + c) * 32 * kWarps +
                      threadIdx.x];
  }
}

// 32 columns from `first_column` on of one head, all documents in turn. Adds to
// `sums`, or sets them in the first pass.
template <typename T, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    BackwardKernel(const Problem<T> p, const T* d_o, const float* d_final_state,
                   T* dv, float* d_initial_state, Sums sums, int first_column,
                   int64_t slots_a_head) {
  // [2][kWarps][3 K + 1]: dq, dk, dlog, dbeta of each warp's columns.
  extern __shared__ float partial[];
  __shared__ float errors[kChunk][kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = first_column + warp * kColumns;
  const int h = blockIdx.x;
  const int width = 3 * p.key_dim + 1;
  constexpr int64_t kState = int64_t(kRows) * kColumns * 32 * kWarps;
  float* const starts = sums.starts + h * slots_a_head * kState;
  float* const decayed =
      sums.decayed + h * (p.tokens < kChunk ? p.tokens : kChunk) * kState;
  int buffer = 0;
  for (int doc = 0; doc < p.docs; ++doc) {
    const int64_t begin = p.cu[doc], end = p.cu[doc + 1];
    State<kRows> s, ds;
    LoadState(p, p.initial_state, doc, h, column, s);
    for (int64_t t = begin; t < end; ++t) {
      if ((t - begin) % kChunk == 0) Keep(s, starts, (t - begin) / kChunk);
      const Token<T, kRows> token(p, t, h, column);
      float e[kColumns];
      Decay(token.decay, s);
      WriteToken(token, s, e);
    }
    LoadState(p, d_final_state, doc, h, column, ds);
    const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t first = begin + chunk * kChunk;
      const int64_t last = min(end, first + kChunk);
      Recall(starts, chunk, s);
      for (int64_t t = first; t < last; ++t) {
        const Token<T, kRows> token(p, t, h, column);
        float e[kColumns];
        Decay(token.decay, s);
        Keep(s, decayed, t - first);
        WriteToken(token, s, e);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (lane == c) errors[t - first][warp * kColumns + c] = e[c];
        }
      }
      __syncwarp();  // a warp reads its own errors only
      for (int64_t t = last - 1; t >= first; --t) {
        const Token<T, kRows> token(p, t, h, column);
        float e[kColumns], d_out[kColumns], u[kColumns], d_e[kColumns];
        float e_do = 0, dbeta = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          e[c] = errors[t - first][warp * kColumns + c];
          d_out[c] = column + c < p.value_dim
                         ? ToFloat(d_o[p.ValueRow(t, h) + column + c])
                         : 0;
          e_do += e[c] * d_out[c];
        }
        Recall(decayed, t - first, s);
        AddOuter(token.q, d_out, ds);
        ReadState(ds, token.k, u);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          dbeta += u[c] * e[c];
          d_e[c] = token.beta * u[c];
          if (lane == c && column + c < p.value_dim)
            dv[p.ValueRow(t, h) + column + c] = FromFloat<T>(d_e[c]);
        }
        float* const mine = partial + (buffer * kWarps + warp) * width;
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          float dq = 0, dk = 0, dlog = 0;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            dk += token.beta * e[c] * ds[j][c] - s[j][c] * d_e[c];
            ds[j][c] -= token.k[j] * d_e[c];
            dq += s[j][c] * d_out[c];
            dlog += s[j][c] * ds[j][c];
            ds[j][c] *= token.decay[j];
          }
          const int i = lane + 32 * j;
          if (i >= p.key_dim) continue;
          // The output reads the token's own write too.
          mine[i] = p.scale * (dq + token.beta * token.k[j] * e_do);
          mine[p.key_dim + i] = dk;
          mine[2 * p.key_dim + i] = dlog;
        }
        if (lane == 0) mine[3 * p.key_dim] = dbeta;
        __syncthreads();
        // The other buffer was last read before this barrier.
        for (int i = threadIdx.x; i < width; i += 32 * kWarps) {
          float sum = 0;
          for (int w = 0; w < kWarps; ++w)
            sum += partial[(buffer * kWarps + w) * width + i];
          const int64_t row = (t * p.heads + h) * p.key_dim;
          float* const to = i < p.key_dim       ? sums.dq + row + i
                            : i < 2 * p.key_dim ? sums.dk + row + i - p.key_dim
                            : i < 3 * p.key_dim
                                ? sums.dlog + row + i - 2 * p.key_dim
                                : sums.dbeta + t * p.heads + h;
          *to = first_column == 0 ? sum : *to + sum;
        }
        buffer ^= 1;
      }
    }
    if (d_initial_state != nullptr)
      StoreState(p, ds, doc, h, column, d_initial_state);
  }
}

}  // namespace cadre::linear_attention::generic

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_GENERIC_BACKWARD_CUH_
