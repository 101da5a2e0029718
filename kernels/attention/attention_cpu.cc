#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/logging.h"
#include "kernels/attention/attention.h"
#include "kernels/common/check.h"
#include "kernels/gemm/gemm.h"

namespace cadre {
namespace {

// Queries whose score rows are held at once.
constexpr int64_t kBlock = 64;

// Queries [begin, begin + rows) of the document that starts at `document`;
// they see the document's first `keys` tokens at most.
struct QueryBlock {
  int64_t document;
  int64_t begin;
  int64_t rows;
  int64_t keys;
};

void AppendBlocks(int64_t begin, int64_t end, std::vector<QueryBlock>& out) {
  for (int64_t t = begin; t < end; t += kBlock) {
    const int64_t rows = std::min(kBlock, end - t);
    out.push_back({begin, t, rows, t + rows - begin});
  }
}

template <typename T>
Tensor Matrix(T* data, int64_t rows, int64_t cols) {
  return Tensor(data, DTypeOf<T>::value, {rows, cols});
}

// One product on the calling thread. Sizes were checked at the entry.
void Multiply(const GemmArgs& args) {
  const absl::Status status = Gemm({}, args);
  CADRE_CHECK(status.ok()) << status.ToString();
}

// Sizes, and pointers to one head of one token. Args is that of either
// direction.
template <typename T, typename Args>
struct Heads {
  explicit Heads(const Args& args)
      : args(args),
        num_tokens(args.q.dim(0)),
        num_heads(args.q.dim(1)),
        num_kv_heads(args.k.dim(1)),
        qk_dim(args.q.dim(2)),
        v_dim(args.v.dim(2)),
        q_pitch(num_heads * qk_dim),
        k_pitch(num_kv_heads * qk_dim),
        v_pitch(num_kv_heads * v_dim),
        o_pitch(num_heads * v_dim) {}

  T* Q(const Tensor& q, int64_t t, int64_t h) const {
    return q.data<T>() + t * q_pitch + h * qk_dim;
  }
  T* K(const Tensor& k, int64_t t, int64_t g) const {
    return k.data<T>() + t * k_pitch + g * qk_dim;
  }
  T* V(const Tensor& v, int64_t t, int64_t g) const {
    return v.data<T>() + t * v_pitch + g * v_dim;
  }
  T* O(const Tensor& o, int64_t t, int64_t h) const {
    return o.data<T>() + t * o_pitch + h * v_dim;
  }

  // scores [rows, keys] = scale Q K^T, of allowed and other keys.
  void Scores(const QueryBlock& block, int64_t h, T* scores) const {
    const int64_t g = h * num_kv_heads / num_heads;
    Multiply({.a = Matrix(Q(args.q, block.begin, h), block.rows, qk_dim),
              .b = Matrix(K(args.k, block.document, g), block.keys, qk_dim),
              .c = Matrix(scores, block.rows, block.keys),
              .trans_b = true,
              .alpha = args.scale,
              .lda = q_pitch,
              .ldb = k_pitch});
  }

  // Replaces the scores of token t's allowed keys by fn(score), of all others
  // by exactly 0, whatever they hold.
  template <typename Fn>
  void MapAllowed(const QueryBlock& block, int64_t t, T* row,
                  std::vector<T>& scratch, const Fn& fn) const {
    const int64_t position = t - block.document;
    if (!args.selected.present()) {
      for (int64_t s = 0; s <= position; ++s) row[s] = fn(row[s]);
      std::fill(row + position + 1, row + block.keys, T{0});
      return;
    }
    const int64_t count = args.num_valid.template data<int32_t>()[t];
    const int32_t* const keys =
        args.selected.template data<int32_t>() + t * args.selected.dim(1);
    scratch.resize(count);
    for (int64_t i = 0; i < count; ++i) scratch[i] = fn(row[keys[i]]);
    std::fill_n(row, block.keys, T{0});
    for (int64_t i = 0; i < count; ++i) row[keys[i]] = scratch[i];
  }

  // Largest score of token t's allowed keys; -inf without any.
  T Largest(const QueryBlock& block, int64_t t, const T* row) const {
    T largest = -std::numeric_limits<T>::infinity();
    if (!args.selected.present()) {
      for (int64_t s = 0; s <= t - block.document; ++s)
        largest = std::max(largest, row[s]);
      return largest;
    }
    const int32_t* const keys =
        args.selected.template data<int32_t>() + t * args.selected.dim(1);
    for (int64_t i = 0; i < args.num_valid.template data<int32_t>()[t]; ++i)
      largest = std::max(largest, row[keys[i]]);
    return largest;
  }

  const Args& args;
  int64_t num_tokens, num_heads, num_kv_heads, qk_dim, v_dim;
  int64_t q_pitch, k_pitch, v_pitch, o_pitch;
};

template <typename T>
void ForwardBlock(const Heads<T, AttentionForwardArgs>& heads,
                  const QueryBlock& block, int64_t h, std::vector<T>& scores,
                  std::vector<T>& scratch) {
  const AttentionForwardArgs& args = heads.args;
  const int64_t g = h * heads.num_kv_heads / heads.num_heads;
  scores.resize(block.rows * block.keys);
  heads.Scores(block, h, scores.data());
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t t = block.begin + i;
    T* const row = scores.data() + i * block.keys;
    const T largest = heads.Largest(block, t, row);
    T sum = 0;
    heads.MapAllowed(block, t, row, scratch, [&](T score) {
      const T e = std::exp(score - largest);
      sum += e;
      return e;
    });
    // A row without keys: log 0 + -inf.
    args.lse.data<T>()[t * heads.num_heads + h] = largest + std::log(sum);
    if (sum == 0) continue;
    for (int64_t s = 0; s < block.keys; ++s) row[s] /= sum;
  }
  Multiply(
      {.a = Matrix(scores.data(), block.rows, block.keys),
       .b = Matrix(heads.V(args.v, block.document, g), block.keys, heads.v_dim),
       .c = Matrix(heads.O(args.o, block.begin, h), block.rows, heads.v_dim),
       .ldb = heads.v_pitch,
       .ldc = heads.o_pitch});
}

template <typename T>
void BackwardBlock(const Heads<T, AttentionBackwardArgs>& heads,
                   const QueryBlock& block, int64_t h, std::vector<T>& p,
                   std::vector<T>& ds, std::vector<T>& scratch) {
  const AttentionBackwardArgs& args = heads.args;
  const int64_t g = h * heads.num_kv_heads / heads.num_heads;
  p.resize(block.rows * block.keys);
  ds.resize(block.rows * block.keys);
  heads.Scores(block, h, p.data());
  const Tensor d_o =
      Matrix(heads.O(args.d_o, block.begin, h), block.rows, heads.v_dim);
  const Tensor p_matrix = Matrix(p.data(), block.rows, block.keys);
  const Tensor ds_matrix = Matrix(ds.data(), block.rows, block.keys);
  // dP, then dS in place.
  Multiply(
      {.a = d_o,
       .b = Matrix(heads.V(args.v, block.document, g), block.keys, heads.v_dim),
       .c = ds_matrix,
       .trans_b = true,
       .lda = heads.o_pitch,
       .ldb = heads.v_pitch});
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t t = block.begin + i;
    const T lse = args.lse.data<T>()[t * heads.num_heads + h];
    const T* const o = heads.O(args.o, t, h);
    const T* const grad = heads.O(args.d_o, t, h);
    T delta = 0;
    for (int64_t d = 0; d < heads.v_dim; ++d) delta += grad[d] * o[d];
    T* const p_row = p.data() + i * block.keys;
    T* const ds_row = ds.data() + i * block.keys;
    heads.MapAllowed(block, t, p_row, scratch,
                     [&](T score) { return std::exp(score - lse); });
    // Where P is 0 the product is never formed: dP may be huge there.
    for (int64_t s = 0; s < block.keys; ++s)
      ds_row[s] = p_row[s] == 0 ? T{0} : p_row[s] * (ds_row[s] - delta);
  }
  Multiply(
      {.a = ds_matrix,
       .b =
           Matrix(heads.K(args.k, block.document, g), block.keys, heads.qk_dim),
       .c = Matrix(heads.Q(args.dq, block.begin, h), block.rows, heads.qk_dim),
       .alpha = args.scale,
       .ldb = heads.k_pitch,
       .ldc = heads.q_pitch});
  Multiply(
      {.a = ds_matrix,
       .b = Matrix(heads.Q(args.q, block.begin, h), block.rows, heads.qk_dim),
       .c = Matrix(heads.K(args.dk, block.document, g), block.keys,
                   heads.qk_dim),
       .trans_a = true,
       .alpha = args.scale,
       .beta = 1,
       .ldb = heads.q_pitch,
       .ldc = heads.k_pitch});
  Multiply({.a = p_matrix,
            .b = d_o,
            .c = Matrix(heads.V(args.dv, block.document, g), block.keys,
                        heads.v_dim),
            .trans_a = true,
            .beta = 1,
            .ldb = heads.o_pitch,
            .ldc = heads.v_pitch});
}

}  // namespace

absl::Status AttentionForwardCpu(const Exec& exec,
                                 const AttentionForwardArgs& args) {
  return DispatchCpu(args.q.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const Heads<T, AttentionForwardArgs> heads(args);
    const int32_t* const cu = args.cu_seqlens.data<int32_t>();
    const int64_t num_docs = args.cu_seqlens.dim(0) - 1;
    std::vector<QueryBlock> blocks;
    for (int64_t doc = 0; doc < num_docs; ++doc)
      AppendBlocks(cu[doc], cu[doc + 1], blocks);
    const int64_t items = static_cast<int64_t>(blocks.size()) * heads.num_heads;
    ParallelFor(exec, items, 1, [&](int64_t begin, int64_t end) {
      std::vector<T> scores, scratch;
      for (int64_t i = begin; i < end; ++i) {
        ForwardBlock(heads, blocks[i / heads.num_heads], i % heads.num_heads,
                     scores, scratch);
      }
    });
    const int64_t real = cu[num_docs];
    T* const o = args.o.data<T>();
    T* const lse = args.lse.data<T>();
    std::fill(o + real * heads.o_pitch, o + heads.num_tokens * heads.o_pitch,
              T{0});
    std::fill(lse + real * heads.num_heads,
              lse + heads.num_tokens * heads.num_heads,
              -std::numeric_limits<T>::infinity());
    return absl::OkStatus();
  });
}

absl::Status AttentionBackwardCpu(const Exec& exec,
                                  const AttentionBackwardArgs& args) {
  return DispatchCpu(args.q.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const Heads<T, AttentionBackwardArgs> heads(args);
    const int32_t* const cu = args.cu_seqlens.data<int32_t>();
    const int64_t num_docs = args.cu_seqlens.dim(0) - 1;
    const int64_t group = heads.num_heads / heads.num_kv_heads;
    T* const dq = args.dq.data<T>();
    std::fill(dq + cu[num_docs] * heads.q_pitch,
              dq + heads.num_tokens * heads.q_pitch, T{0});
    std::fill_n(args.dk.data<T>(), args.dk.num_elements(), T{0});
    std::fill_n(args.dv.data<T>(), args.dv.num_elements(), T{0});
    // One thread owns the keys of a (document, key head).
    ParallelFor(exec, num_docs * heads.num_kv_heads, 1,
                [&](int64_t begin, int64_t end) {
                  std::vector<T> p, ds, scratch;
                  std::vector<QueryBlock> blocks;
                  for (int64_t i = begin; i < end; ++i) {
                    const int64_t doc = i / heads.num_kv_heads;
                    const int64_t g = i % heads.num_kv_heads;
                    blocks.clear();
                    AppendBlocks(cu[doc], cu[doc + 1], blocks);
                    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
                      for (const QueryBlock& block : blocks)
                        BackwardBlock(heads, block, h, p, ds, scratch);
                    }
                  }
                });
    return absl::OkStatus();
  });
}

}  // namespace cadre
