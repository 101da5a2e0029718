#ifndef CADRE_KERNELS_HYPER_CONNECTION_SINKHORN_H_
#define CADRE_KERNELS_HYPER_CONNECTION_SINKHORN_H_

// Private to the CPU hyper-connections: the near doubly stochastic matrix of
// one token, forward and backward. An object holds the scratch of one thread.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace cadre {

template <typename T>
class Sinkhorn {
 public:
  // m x m matrices, row-major.
  Sinkhorn(int64_t m, int64_t iterations, T eps)
      : m_(m), steps_(2 * iterations - 1), eps_(eps) {
    results_.resize((steps_ + 1) * m * m);
  }

  // Normalises softmax_rows(logits) + eps: columns, then alternately rows and
  // columns. The result stays valid until the next call.
  const T* Forward(const T* logits) {
    T* const start = results_.data();
    for (int64_t j = 0; j < m_; ++j) {
      const T* const row = logits + j * m_;
      const T largest = *std::max_element(row, row + m_);
      T sum = 0;
      for (int64_t i = 0; i < m_; ++i)
        sum += start[j * m_ + i] = std::exp(row[i] - largest);
      for (int64_t i = 0; i < m_; ++i)
        start[j * m_ + i] = start[j * m_ + i] / sum + eps_;
    }
    for (int64_t step = 0; step < steps_; ++step) {
      const T* const c = Result(step);
      T* const y = Result(step + 1);
      ForEachLine(step, [&](int64_t first, int64_t stride) {
        const T total = Total(c, first, stride);
        for (int64_t i = 0; i < m_; ++i)
          y[first + i * stride] = c[first + i * stride] / total;
      });
    }
    return Result(steps_);
  }

  // After Forward(logits): turns d = d(loss)/dC into d(loss)/d(logits).
  void Backward(T* d) {
    for (int64_t step = steps_ - 1; step >= 0; --step) {
      const T* const c = Result(step);
      const T* const y = Result(step + 1);
      ForEachLine(step, [&](int64_t first, int64_t stride) {
        const T total = Total(c, first, stride);
        T inner = 0;
        for (int64_t i = 0; i < m_; ++i)
          inner += d[first + i * stride] * y[first + i * stride];
        for (int64_t i = 0; i < m_; ++i)
          d[first + i * stride] = (d[first + i * stride] - inner) / total;
      });
    }
    const T* const start = Result(0);
    for (int64_t j = 0; j < m_ * m_; j += m_) {
      T inner = 0;
      for (int64_t i = j; i < j + m_; ++i) inner += d[i] * (start[i] - eps_);
      for (int64_t i = j; i < j + m_; ++i)
        d[i] = (start[i] - eps_) * (d[i] - inner);
    }
  }

 private:
  T* Result(int64_t step) { return results_.data() + step * m_ * m_; }

  T Total(const T* c, int64_t first, int64_t stride) const {
    T sum = 0;
    for (int64_t i = 0; i < m_; ++i) sum += c[first + i * stride];
    return sum + eps_;
  }

  // Even steps go over columns, odd ones over rows.
  template <typename Fn>
  void ForEachLine(int64_t step, const Fn& fn) const {
    const bool columns = step % 2 == 0;
    for (int64_t line = 0; line < m_; ++line)
      fn(columns ? line : line * m_, columns ? m_ : 1);
  }

  int64_t m_, steps_;
  T eps_;
  std::vector<T> results_;
};

}  // namespace cadre

#endif  // CADRE_KERNELS_HYPER_CONNECTION_SINKHORN_H_
