#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/rope/rope.h"

namespace cadre {
namespace {

// Calls rotate(row, cosines, sines, scratch) for the slice of every row.
template <typename T, typename Rotate>
void ForEachSlice(const Exec& exec, const RopeArgs& args,
                  const Rotate& rotate) {
  const int64_t num_heads = args.x.dim(1);
  const int64_t pitch = args.x.dim(2);
  const int64_t half = args.inv_freq.dim(0);
  const float* const inv_freq = args.inv_freq.data<float>();
  const int32_t* const positions = args.positions.data<int32_t>();
  T* const x = args.x.data<T>();
  ParallelFor(exec, args.x.dim(0), 8, [&](int64_t begin, int64_t end) {
    std::vector<T> cosines(half), sines(half), scratch(2 * half);
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(positions[t]) * inv_freq[i];
        // In double, so that large angles are reduced exactly.
        const double exact = static_cast<double>(angle);
        cosines[i] = static_cast<T>(std::cos(exact) * args.attention_factor);
        sines[i] = static_cast<T>(std::sin(exact) * args.attention_factor);
      }
      for (int64_t h = 0; h < num_heads; ++h) {
        rotate(x + (t * num_heads + h) * pitch + args.offset, cosines.data(),
               sines.data(), scratch.data());
      }
    }
  });
}

}  // namespace

absl::Status RopeForwardCpu(const Exec& exec, const RopeArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t half = args.inv_freq.dim(0);
    ForEachSlice<T>(
        exec, args, [&](T* row, const T* c, const T* s, T* scratch) {
          std::copy_n(row, 2 * half, scratch);
          for (int64_t i = 0; i < half; ++i) {
            const T first = scratch[args.interleaved ? 2 * i : i];
            const T second = scratch[args.interleaved ? 2 * i + 1 : i + half];
            row[i] = first * c[i] - second * s[i];
            row[i + half] = second * c[i] + first * s[i];
          }
        });
    return absl::OkStatus();
  });
}

absl::Status RopeBackwardCpu(const Exec& exec, const RopeArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t half = args.inv_freq.dim(0);
    ForEachSlice<T>(
        exec, args, [&](T* row, const T* c, const T* s, T* scratch) {
          std::copy_n(row, 2 * half, scratch);
          for (int64_t i = 0; i < half; ++i) {
            const T first = scratch[i];
            const T second = scratch[i + half];
            row[args.interleaved ? 2 * i : i] = first * c[i] + second * s[i];
            row[args.interleaved ? 2 * i + 1 : i + half] =
                second * c[i] - first * s[i];
          }
        });
    return absl::OkStatus();
  });
}

}  // namespace cadre
