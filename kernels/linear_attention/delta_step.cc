#include "kernels/linear_attention/delta_step.h"

#include <cstdint>

// Compiled twice, for one AVX-512 register to a vector and for four SSE ones;
// the program chooses when it starts. (GCC 12 splits 64-byte vectors so badly
// for AVX2 that SSE is three times as fast.) The sanitizers' run time is not up
// yet when that choice is made, so they get one version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CADRE_VECTOR_CLONES __attribute__((target_clones("avx512f", "default")))
#else
#define CADRE_VECTOR_CLONES
#endif

// The loops have to be compiled as part of each clone.
#define CADRE_INTO_CLONE __attribute__((always_inline)) inline

namespace cadre::linear_attention {
namespace {

// kLanes scalars. Pointers to it are written out in full: `auto*` would lose
// the reduced alignment.
template <typename S>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type
      __attribute__((vector_size(64), aligned(alignof(float)), may_alias));
};
template <>
struct VectorOf<double> {
  typedef double Type
      __attribute__((vector_size(64), aligned(alignof(double)), may_alias));
};

template <bool kReadQ, typename S>
CADRE_INTO_CLONE void AdvanceTiles(const AdvanceArgs<S>& args) {
  using Vector = typename VectorOf<S>::Type;
  constexpr int64_t kWidth = kLanes<S>;
  const int64_t key_dim = args.key_dim;
  const S* const write = args.write;
  const S* const decay = args.decay;
  const S* const k = args.k;
  const S* const q = args.q;
  for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
    const Vector* from =
        reinterpret_cast<const Vector*>(args.from + tile * key_dim * kWidth);
    Vector* to = reinterpret_cast<Vector*>(args.to + tile * key_dim * kWidth);
    const Vector e = *reinterpret_cast<const Vector*>(args.e + tile * kWidth);
    Vector read_k = {};
    Vector read_q = {};
    for (int64_t i = 0; i < key_dim; ++i) {
      const Vector s = (from[i] + write[i] * e) * decay[i];
      to[i] = s;
      read_k += k[i] * s;
      if (kReadQ) read_q += q[i] * s;
    }
    *reinterpret_cast<Vector*>(args.read_k + tile * kWidth) = read_k;
    if (kReadQ)
      *reinterpret_cast<Vector*>(args.read_q + tile * kWidth) = read_q;
  }
}

template <typename S>
CADRE_INTO_CLONE void AdvanceToken(const AdvanceArgs<S>& args) {
  if (args.q != nullptr) {
    AdvanceTiles<true>(args);
  } else {
    AdvanceTiles<false>(args);
  }
}

template <typename S>
CADRE_INTO_CLONE S SumOfLanes(const S* lanes) {
  S sum = 0;
  for (int64_t j = 0; j < kLanes<S>; ++j) sum += lanes[j];
  return sum;
}

template <typename S>
CADRE_INTO_CLONE void ReverseToken(const ReverseArgs<S>& args) {
  using Vector = typename VectorOf<S>::Type;
  constexpr int64_t kWidth = kLanes<S>;
  const int64_t key_dim = args.key_dim;
  const S* const k = args.k;
  const S* const q = args.q;
  const S* const decay = args.decay;
  for (int64_t i = 0; i < 3 * key_dim * kWidth; ++i) args.lanes[i] = 0;
  Vector* dq = reinterpret_cast<Vector*>(args.lanes);
  Vector* dk = dq + key_dim;
  Vector* dlog = dk + key_dim;
  for (int64_t tile = 0; tile < args.num_tiles; ++tile) {
    Vector* d_state =
        reinterpret_cast<Vector*>(args.d_state + tile * key_dim * kWidth);
    const Vector* decayed =
        reinterpret_cast<const Vector*>(args.decayed + tile * key_dim * kWidth);
    const Vector e = *reinterpret_cast<const Vector*>(args.e + tile * kWidth);
    const Vector d_o =
        *reinterpret_cast<const Vector*>(args.d_o + tile * kWidth);
    const Vector beta_e = args.beta * e;
    Vector u = {};
    for (int64_t i = 0; i < key_dim; ++i) {
      const Vector ds = d_state[i] + q[i] * d_o;
      d_state[i] = ds;
      u += k[i] * ds;
      dk[i] += beta_e * ds;
    }
    const Vector d_e = args.beta * u;
    for (int64_t i = 0; i < key_dim; ++i) {
      const Vector d = decayed[i];
      const Vector ds = d_state[i] - k[i] * d_e;
      dq[i] += d * d_o;
      dk[i] -= d * d_e;
      dlog[i] += d * ds;
      d_state[i] = ds * decay[i];
    }
    *reinterpret_cast<Vector*>(args.u + tile * kWidth) = u;
    *reinterpret_cast<Vector*>(args.d_e + tile * kWidth) = d_e;
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    args.dq[i] = SumOfLanes(args.lanes + i * kWidth);
    args.dk[i] = SumOfLanes(args.lanes + (key_dim + i) * kWidth);
    args.dlog[i] = SumOfLanes(args.lanes + (2 * key_dim + i) * kWidth);
  }
}

}  // namespace

CADRE_VECTOR_CLONES void Advance(const AdvanceArgs<float>& args) {
  AdvanceToken(args);
}
CADRE_VECTOR_CLONES void Advance(const AdvanceArgs<double>& args) {
  AdvanceToken(args);
}
CADRE_VECTOR_CLONES void Reverse(const ReverseArgs<float>& args) {
  ReverseToken(args);
}
CADRE_VECTOR_CLONES void Reverse(const ReverseArgs<double>& args) {
  ReverseToken(args);
}

}  // namespace cadre::linear_attention
