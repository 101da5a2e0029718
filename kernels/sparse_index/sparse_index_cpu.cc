#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/sparse_index/sparse_index.h"

namespace cadre {
namespace {

// One document: its tokens, and its keys (or pooled keys), rows of Di.
template <typename T>
struct Document {
  int64_t begin, end;
  const T* keys;
};

// kbar of the complete pools of tokens [begin, end).
template <typename T>
std::vector<T> PooledKeys(const SparseIndexArgs& args, int64_t begin,
                          int64_t end) {
  const int64_t pool = args.kpool, width = args.k.dim(1);
  const int64_t num_pools = (end - begin) / pool;
  const T* const k = args.k.data<T>();
  const T* const gate = args.pool_gate.data<T>();
  const T* const ape = args.pool_ape.data<T>();
  std::vector<T> out(num_pools * width), logits(pool);
  for (int64_t p = 0; p < num_pools; ++p) {
    const int64_t first = begin + p * pool;
    for (int64_t d = 0; d < width; ++d) {
      for (int64_t j = 0; j < pool; ++j)
        logits[j] = gate[(first + j) * width + d] + ape[j * width + d];
      const T largest = *std::max_element(logits.begin(), logits.end());
      T sum = 0, mixed = 0;
      for (int64_t j = 0; j < pool; ++j) {
        const T e = std::exp(logits[j] - largest);
        sum += e;
        mixed += e * k[(first + j) * width + d];
      }
      out[p * width + d] = mixed / sum;
    }
  }
  return out;
}

template <typename T>
T Score(const SparseIndexArgs& args, int64_t t, const T* key, T scale) {
  const int64_t num_heads = args.q.dim(1), width = args.q.dim(2);
  const T* const q = args.q.data<T>() + t * num_heads * width;
  const T* const omega = args.head_weight.data<T>() + t * num_heads;
  T score = 0;
  for (int64_t h = 0; h < num_heads; ++h) {
    const T* const row = q + h * width;
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < width; ++d) dot += row[d] * key[d];
    score += omega[h] * std::max(T{0}, scale * dot);
  }
  // NaN has no place in an order.
  return std::isnan(score) ? -std::numeric_limits<T>::infinity() : score;
}

// The best `count` of the first `candidates` keys, in ascending order.
template <typename T>
void Choose(const SparseIndexArgs& args, const Document<T>& doc, int64_t t,
            int64_t candidates, int64_t count, std::vector<T>& scores,
            std::vector<int32_t>& order) {
  order.resize(candidates);
  std::iota(order.begin(), order.end(), 0);
  if (candidates <= count) return;
  const int64_t width = args.k.dim(1);
  const T scale = 1 / std::sqrt(static_cast<T>(width));
  scores.resize(candidates);
  for (int64_t s = 0; s < candidates; ++s)
    scores[s] = Score(args, t, doc.keys + s * width, scale);
  std::nth_element(order.begin(), order.begin() + count, order.end(),
                   [&](int32_t a, int32_t b) {
                     if (scores[a] != scores[b]) return scores[a] > scores[b];
                     return a < b;
                   });
  order.resize(count);
  std::sort(order.begin(), order.end());
}

template <typename T>
void IndexToken(const SparseIndexArgs& args, const Document<T>& doc, int64_t t,
                std::vector<T>& scores, std::vector<int32_t>& order) {
  const int64_t row_width = args.selected.dim(1);
  int32_t* const row = args.selected.data<int32_t>() + t * row_width;
  const int64_t visible = t - doc.begin + 1;
  int64_t count = 0;
  if (args.kpool == 0) {
    Choose(args, doc, t, visible, args.topk, scores, order);
    for (int32_t s : order) row[count++] = s;
  } else {
    const int64_t complete = visible / args.kpool;
    Choose(args, doc, t, complete, args.topk / args.kpool, scores, order);
    for (int64_t p : order) {
      for (int64_t j = 0; j < args.kpool; ++j)
        row[count++] = static_cast<int32_t>(p * args.kpool + j);
    }
    for (int64_t s = complete * args.kpool; s < visible; ++s)
      row[count++] = static_cast<int32_t>(s);
  }
  std::fill(row + count, row + row_width, -1);
  args.num_valid.data<int32_t>()[t] = static_cast<int32_t>(count);
}

}  // namespace

absl::Status SparseIndexCpu(const Exec& exec, const SparseIndexArgs& args) {
  return DispatchCpu(args.q.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int32_t* const cu = args.cu_seqlens.data<int32_t>();
    const int64_t num_docs = args.cu_seqlens.dim(0) - 1;
    for (int64_t i = 0; i < num_docs; ++i) {
      std::vector<T> pooled;
      Document<T> doc = {cu[i], cu[i + 1],
                         args.k.data<T>() + cu[i] * args.k.dim(1)};
      if (args.kpool > 0) {
        pooled = PooledKeys<T>(args, doc.begin, doc.end);
        doc.keys = pooled.data();
      }
      ParallelFor(exec, doc.end - doc.begin, 4,
                  [&](int64_t begin, int64_t end) {
                    std::vector<T> scores;
                    std::vector<int32_t> order;
                    for (int64_t t = begin; t < end; ++t)
                      IndexToken(args, doc, doc.begin + t, scores, order);
                  });
    }
    const int64_t real = cu[num_docs], num_tokens = args.q.dim(0);
    std::fill_n(args.num_valid.data<int32_t>() + real, num_tokens - real, 0);
    const int64_t row_width = args.selected.dim(1);
    std::fill_n(args.selected.data<int32_t>() + real * row_width,
                (num_tokens - real) * row_width, -1);
    return absl::OkStatus();
  });
}

}  // namespace cadre
