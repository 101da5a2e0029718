#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/linear_attention/generic.h"

// Columns of the state never mix. A warp holds 4 of them, its lanes share the
// key channels, so a sum over keys is a warp reduction and the forward needs no
// barrier. Only the gradients of q, k and the decay sum over columns: the
// backward takes 32 columns at a time, adds up the warps of a block in order,
// and the passes over columns one after the other.

namespace cadre::linear_attention {
namespace {

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

template <typename T, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    ForwardKernel(const Problem<T> p, T* o, float* final_state) {
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.z * kTile + threadIdx.x / 32 * kColumns;
  const int h = blockIdx.y, doc = blockIdx.x;
  if (column >= p.value_dim) return;  // no barriers below
  State<kRows> s;
  LoadState(p, p.initial_state, doc, h, column, s);
  for (int64_t t = p.cu[doc]; t < p.cu[doc + 1]; ++t) {
    const Token<T, kRows> token(p, t, h, column);
    float sums[kColumns];
    Decay(token.decay, s);
    ReadState(s, token.k, sums);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      sums[c] = token.beta * (token.v[c] - sums[c]);
    AddOuter(token.k, sums, s);
    ReadState(s, token.q, sums);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane == c && column + c < p.value_dim)
        o[p.ValueRow(t, h) + column + c] = FromFloat<T>(sums[c]);
    }
  }
  if (final_state != nullptr) StoreState(p, s, doc, h, column, final_state);
}

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
      ReadState(s, token.k, e);
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        e[c] = token.beta * (token.v[c] - e[c]);
      AddOuter(token.k, e, s);
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
        ReadState(s, token.k, e);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          e[c] = token.v[c] - e[c];
          if (lane == c) errors[t - first][warp * kColumns + c] = e[c];
          e[c] *= token.beta;
        }
        AddOuter(token.k, e, s);
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

// dq and dk: sums over the value heads that share a key head; zeros for
// padding.
template <typename T>
__global__ void FinishKeysKernel(const Problem<T> p, Sums sums, T* dq, T* dk) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t n = p.tokens * p.key_heads * p.key_dim;
  const int repeats = p.heads / p.key_heads;
  for (int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; at < n;
       at += stride) {
    const int64_t head = at / p.key_dim, i = at - head * p.key_dim;
    float q = 0, k = 0;
    if (head / p.key_heads < p.cu[p.docs]) {
      for (int r = 0; r < repeats; ++r) {
        q += sums.dq[(head * repeats + r) * p.key_dim + i];
        k += sums.dk[(head * repeats + r) * p.key_dim + i];
      }
    }
    dq[at] = FromFloat<T>(q);
    dk[at] = FromFloat<T>(k);
  }
}

// A warp is a token and head: decay logits and beta.
template <typename T>
__global__ void FinishGatesKernel(const Problem<T> p, Sums sums, T* dz,
                                  float* da, float* dbeta) {
  const int lane = threadIdx.x % 32;
  const int64_t item =
      int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (item >= p.tokens * p.heads) return;
  const int64_t t = item / p.heads;
  const int h = static_cast<int>(item % p.heads);
  const bool real = t < p.cu[p.docs];
  float sum = 0;
  for (int i = lane; i < p.key_dim; i += 32) {
    const float dlog = real ? sums.dlog[item * p.key_dim + i] : 0;
    sum += dlog;
    if (dz != nullptr) {
      dz[item * p.key_dim + i] =
          FromFloat<T>(real ? dlog * p.Slope(h, p.Logit(t, h, i)) : 0);
    }
  }
  sum = WarpSum(sum);
  if (lane != 0) return;
  if (da != nullptr) da[item] = real ? sum * p.Slope(h, p.Logit(t, h, 0)) : 0;
  const float b = device::Sigmoid(real ? p.beta[item] : 0);
  dbeta[item] = real ? sums.dbeta[item] * b * (1 - b) : 0;
}

// Terms of da_log (rows: tokens and channels, columns: heads) and of ddt_bias
// (rows: tokens; columns: heads and channels, or heads).
template <typename T>
struct RateTerm {
  Problem<T> p;
  const float* dlog;
  __device__ float operator()(int64_t row, int64_t h) const {
    const int64_t t = row / p.key_dim;
    const int i = static_cast<int>(row % p.key_dim);
    if (t >= p.cu[p.docs]) return 0;
    return dlog[(t * p.heads + h) * p.key_dim + i] *
           p.RateSlope(static_cast<int>(h), p.Logit(t, static_cast<int>(h), i));
  }
};
template <typename T>
struct BiasTerm {
  Problem<T> p;
  const float* dlog;
  __device__ float operator()(int64_t t, int64_t column) const {
    if (t >= p.cu[p.docs]) return 0;
    if (p.z != nullptr) {
      const int h = static_cast<int>(column / p.key_dim);
      const int i = static_cast<int>(column % p.key_dim);
      return dlog[(t * p.heads + h) * p.key_dim + i] *
             p.Slope(h, p.Logit(t, h, i));
    }
    const int h = static_cast<int>(column);
    float sum = 0;
    for (int i = 0; i < p.key_dim; ++i)
      sum += dlog[(t * p.heads + h) * p.key_dim + i];
    return sum * p.Slope(h, p.Logit(t, h, 0));
  }
};

template <typename T>
__global__ void ZeroPaddingKernel(const int32_t* cu, int docs, int64_t tokens,
                                  int64_t width, T* x) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i =
           cu[docs] * width + int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
       i < tokens * width; i += stride)
    x[i] = FromFloat<T>(0);
}

template <typename T>
Problem<T> Describe(const GenericInputs& in) {
  Problem<T> p = {};
  p.q = in.q.data<T>();
  p.k = in.k.data<T>();
  p.v = in.v.data<T>();
  p.z = in.z.data<T>();
  p.a = in.a.data<float>();
  p.beta = in.beta.data<float>();
  p.a_log = in.a_log.data<float>();
  p.dt_bias = in.dt_bias.data<float>();
  p.cu = in.cu_seqlens.data<int32_t>();
  p.initial_state = in.initial_state.data<float>();
  p.tokens = in.q.dim(0);
  p.docs = static_cast<int>(in.cu_seqlens.dim(0) - 1);
  p.heads = static_cast<int>(in.v.dim(1));
  p.key_heads = static_cast<int>(in.q.dim(1));
  p.key_dim = static_cast<int>(in.q.dim(2));
  p.value_dim = static_cast<int>(in.v.dim(2));
  p.bounded = in.bounded;
  p.bound = in.bound;
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.key_dim)));
  return p;
}

// Calls fn(zero of T, key rows of a lane as a constant).
template <typename Fn>
absl::Status Dispatch(absl::string_view op, const Tensor& q, Fn&& fn) {
  if (q.dim(2) > kGenericMaxKeyDim) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": q is ", q.DebugString(),
                     "; the CUDA kernels hold keys of at most ",
                     kGenericMaxKeyDim, " channels"));
  }
  return DispatchCuda(q.dtype(), [&](auto zero) {
    switch (GenericRows(q.dim(2))) {
      case 1:
        return fn(zero, std::integral_constant<int, 1>{});
      case 4:
        return fn(zero, std::integral_constant<int, 4>{});
      default:
        return fn(zero, std::integral_constant<int, 8>{});
    }
  });
}

template <typename T>
absl::Status ZeroPadding(absl::string_view op, const Exec& exec,
                         const Problem<T>& p, int64_t width, T* x) {
  return Launch(op, exec, {.grid = 64, .block = 256}, ZeroPaddingKernel<T>,
                p.cu, p.docs, p.tokens, width, x);
}

template <typename T>
absl::Status Finish(absl::string_view op, const Exec& exec, const Problem<T>& p,
                    const Sums& sums, const GenericGradients& g) {
  CADRE_RETURN_IF_ERROR(Launch(
      op, exec,
      {.grid = GridFor(p.tokens * p.key_heads * p.key_dim, 256), .block = 256},
      FinishKeysKernel<T>, p, sums, g.dq.data<T>(), g.dk.data<T>()));
  CADRE_RETURN_IF_ERROR(Launch(
      op, exec, {.grid = unsigned((p.tokens * p.heads + 3) / 4), .block = 128},
      FinishGatesKernel<T>, p, sums, g.dz.data<T>(), g.da.data<float>(),
      g.dbeta.data<float>()));
  if (g.da_log.present()) {
    CADRE_RETURN_IF_ERROR(SumRows(op, exec, p.tokens * p.key_dim, p.heads,
                                  /*accumulate=*/true, g.da_log.data<float>(),
                                  RateTerm<T>{p, sums.dlog}));
  }
  if (!g.ddt_bias.present()) return absl::OkStatus();
  return SumRows(op, exec, p.tokens, g.ddt_bias.num_elements(),
                 /*accumulate=*/true, g.ddt_bias.data<float>(),
                 BiasTerm<T>{p, sums.dlog});
}

}  // namespace

absl::Status GenericForward(absl::string_view op, const Exec& exec,
                            const GenericInputs& in, const Tensor& o,
                            const Tensor& final_state) {
  return Dispatch(op, in.q, [&](auto zero, auto rows) -> absl::Status {
    using T = decltype(zero);
    const Problem<T> p = Describe<T>(in);
    CADRE_RETURN_IF_ERROR(
        ZeroPadding(op, exec, p, int64_t(p.heads) * p.value_dim, o.data<T>()));
    return Launch(
        op, exec,
        {.grid =
             dim3(p.docs, p.heads, unsigned((p.value_dim + kTile - 1) / kTile)),
         .block = 32 * kWarps},
        ForwardKernel<T, rows()>, p, o.data<T>(), final_state.data<float>());
  });
}

absl::Status GenericBackward(absl::string_view op, const Exec& exec,
                             const GenericInputs& in, const GenericGradients& g,
                             const Tensor& workspace) {
  const GenericLayout at = LayOutGeneric(in.q.dim(0), in.v.dim(1), in.q.dim(2));
  if (!workspace.present() || workspace.num_bytes() < at.floats * 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": workspace is ", workspace.DebugString(),
                     ", expected at least ", at.floats * 4, " bytes"));
  }
  float* const base = static_cast<float*>(workspace.raw());
  const Sums sums = {base + at.dq,    base + at.dk,     base + at.dlog,
                     base + at.dbeta, base + at.starts, base + at.decayed};
  return Dispatch(op, in.q, [&](auto zero, auto rows) -> absl::Status {
    using T = decltype(zero);
    const Problem<T> p = Describe<T>(in);
    CADRE_RETURN_IF_ERROR(ZeroPadding(
        op, exec, p, int64_t(p.heads) * p.value_dim, g.dv.data<T>()));
    const size_t shared = 2 * kWarps * (3 * p.key_dim + 1) * sizeof(float);
    // Without value columns one pass still sets the sums to zero.
    for (int column = 0; column == 0 || column < p.value_dim; column += kTile) {
      CADRE_RETURN_IF_ERROR(Launch(
          op, exec,
          {.grid = unsigned(p.heads),
           .block = 32 * kWarps,
           .shared_bytes = shared},
          BackwardKernel<T, rows()>, p, g.d_o.data<T>(),
          g.d_final_state.data<float>(), g.dv.data<T>(),
          g.d_initial_state.data<float>(), sums, column, p.tokens / 64 + 1));
    }
    return Finish(op, exec, p, sums, g);
  });
}

}  // namespace cadre::linear_attention
