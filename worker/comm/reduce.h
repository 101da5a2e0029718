#ifndef CADRE_WORKER_COMM_REDUCE_H_
#define CADRE_WORKER_COMM_REDUCE_H_

// What the host communicators share: the element-wise combination of two
// contributions and the cut of a buffer into one block per rank. Both decide
// the bits of a result, so there is one copy of them.

#include <algorithm>
#include <cstdint>

namespace cadre {

enum class ReduceOp { kSum, kMin, kMax };

// into[i] = into[i] op from[i]
template <typename T>
void Combine(ReduceOp op, T* into, const T* from, int64_t n) {
  switch (op) {
    case ReduceOp::kSum:
      for (int64_t i = 0; i < n; ++i) into[i] += from[i];
      break;
    case ReduceOp::kMin:
      for (int64_t i = 0; i < n; ++i) into[i] = std::min(into[i], from[i]);
      break;
    case ReduceOp::kMax:
      for (int64_t i = 0; i < n; ++i) into[i] = std::max(into[i], from[i]);
      break;
  }
}

// First element of block `index` of `count` in a buffer of n elements.
inline int64_t BlockBegin(int64_t n, int64_t index, int64_t count) {
  return n / count * index + std::min(n % count, index);
}

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_REDUCE_H_
