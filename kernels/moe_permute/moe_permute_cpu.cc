#include <algorithm>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/moe_permute/moe_permute.h"

namespace cadre {
namespace {

int64_t RowGrain(int64_t width) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
}

}  // namespace

absl::Status MoePermuteCpu(const Exec& exec, const MoePermuteArgs& args) {
  const int64_t pairs = args.ids.num_elements();
  const int64_t num_experts = args.offsets.dim(0) - 1;
  const int32_t* const ids = args.ids.data<int32_t>();
  int32_t* const offsets = args.offsets.data<int32_t>();
  int32_t* const row_source = args.row_source.data<int32_t>();
  int32_t* const row_of = args.row_of.data<int32_t>();

  std::fill_n(offsets, num_experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) {
    if (ids[i] >= 0) ++offsets[ids[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) offsets[e + 1] += offsets[e];

  std::vector<int32_t> next(offsets, offsets + num_experts);
  std::fill(row_source + offsets[num_experts], row_source + pairs, -1);
  for (int64_t i = 0; i < pairs; ++i) {
    row_of[i] = -1;
    if (ids[i] < 0) continue;
    row_of[i] = next[ids[i]]++;
    row_source[row_of[i]] = static_cast<int32_t>(i);
  }
  return absl::OkStatus();
}

absl::Status MoeGatherCpu(const Exec& exec, const MoeGatherArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.x.dim(1);
    const T* const x = args.x.data<T>();
    T* const rows = args.rows.data<T>();
    const int32_t* const source = args.row_source.data<int32_t>();
    ParallelFor(exec, args.rows.dim(0), RowGrain(width),
                [&](int64_t begin, int64_t end) {
                  for (int64_t r = begin; r < end; ++r) {
                    T* const row = rows + r * width;
                    if (source[r] < 0) {
                      std::fill_n(row, width, T{0});
                    } else {
                      std::copy_n(x + source[r] / args.top_k * width, width,
                                  row);
                    }
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status MoeCombineCpu(const Exec& exec, const MoeCombineArgs& args) {
  return DispatchCpu(args.rows.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.rows.dim(1);
    const int64_t top_k = args.row_of.dim(1);
    const T* const rows = args.rows.data<T>();
    const int32_t* const row_of = args.row_of.data<int32_t>();
    const T* const weights =
        args.weights.present() ? args.weights.data<T>() : nullptr;
    T* const y = args.y.data<T>();
    ParallelFor(exec, args.y.dim(0), RowGrain(width),
                [&](int64_t begin, int64_t end) {
                  for (int64_t t = begin; t < end; ++t) {
                    T* const out = y + t * width;
                    if (!args.accumulate) std::fill_n(out, width, T{0});
                    for (int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
                      if (row_of[i] < 0) continue;
                      const T weight = weights != nullptr ? weights[i] : T{1};
                      const T* const row = rows + row_of[i] * width;
                      for (int64_t d = 0; d < width; ++d)
                        out[d] += weight * row[d];
                    }
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status MoeCombineBackwardCpu(const Exec& exec,
                                   const MoeCombineBackwardArgs& args) {
  return DispatchCpu(args.dy.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.dy.dim(1);
    const int64_t top_k = args.row_of.dim(1);
    const T* const dy = args.dy.data<T>();
    const int32_t* const source = args.row_source.data<int32_t>();
    const int32_t* const row_of = args.row_of.data<int32_t>();
    const T* const weights =
        args.weights.present() ? args.weights.data<T>() : nullptr;
    T* const dweights =
        args.dweights.present() ? args.dweights.data<T>() : nullptr;
    const T* const rows = dweights != nullptr ? args.rows.data<T>() : nullptr;
    T* const drows = args.drows.data<T>();
    if (dweights != nullptr) {
      for (int64_t i = 0; i < args.row_of.num_elements(); ++i) {
        if (row_of[i] < 0) dweights[i] = 0;
      }
    }
    ParallelFor(exec, args.drows.dim(0), RowGrain(width),
                [&](int64_t begin, int64_t end) {
                  for (int64_t r = begin; r < end; ++r) {
                    T* const out = drows + r * width;
                    if (source[r] < 0) {
                      std::fill_n(out, width, T{0});
                      continue;
                    }
                    const T* const grad = dy + source[r] / top_k * width;
                    if (dweights != nullptr) {
                      T sum = 0;
                      for (int64_t d = 0; d < width; ++d)
                        sum += grad[d] * rows[r * width + d];
                      dweights[source[r]] = sum;
                    }
                    const T weight =
                        weights != nullptr ? weights[source[r]] : T{1};
                    for (int64_t d = 0; d < width; ++d)
                      out[d] = weight * grad[d];
                  }
                });
    return absl::OkStatus();
  });
}

}  // namespace cadre
