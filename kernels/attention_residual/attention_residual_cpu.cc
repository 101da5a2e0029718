#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention_residual/attention_residual.h"
#include "kernels/common/check.h"

namespace cadre {
namespace {

constexpr int64_t kTokenGrain = 4;

template <typename T>
std::vector<T*> Pointers(const std::vector<Tensor>& tensors) {
  std::vector<T*> out;
  for (const Tensor& tensor : tensors)
    out.push_back(tensor.present() ? tensor.data<T>() : nullptr);
  return out;
}

// score = rstd <row, norm_weight proj>, so both vectors act as one.
template <typename T>
std::vector<T> Direction(const Tensor& norm_weight, const Tensor& proj) {
  std::vector<T> out(proj.dim(0));
  for (int64_t d = 0; d < proj.dim(0); ++d)
    out[d] = norm_weight.data<T>()[d] * proj.data<T>()[d];
  return out;
}

}  // namespace

absl::Status AttentionResidualForwardCpu(
    const Exec& exec, const AttentionResidualForwardArgs& args) {
  return DispatchCpu(args.y.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_rows = static_cast<int64_t>(args.rows.size());
    const int64_t width = args.y.dim(1);
    const std::vector<T*> rows = Pointers<T>(args.rows);
    const std::vector<T> direction = Direction<T>(args.norm_weight, args.proj);
    const T eps = static_cast<T>(args.eps);
    ParallelFor(
        exec, args.y.dim(0), kTokenGrain, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t) {
            T* const p = args.p.data<T>() + t * num_rows;
            T* const rstd = args.rstd.data<T>() + t * num_rows;
            for (int64_t i = 0; i < num_rows; ++i) {
              const T* const row = rows[i] + t * width;
              T squares = 0, dot = 0;
              for (int64_t d = 0; d < width; ++d) {
                squares += row[d] * row[d];
                dot += row[d] * direction[d];
              }
              rstd[i] = 1 / std::sqrt(squares / static_cast<T>(width) + eps);
              p[i] = rstd[i] * dot;
            }
            const T largest = *std::max_element(p, p + num_rows);
            T sum = 0;
            for (int64_t i = 0; i < num_rows; ++i)
              sum += p[i] = std::exp(p[i] - largest);
            T* const y = args.y.data<T>() + t * width;
            std::fill_n(y, width, T{0});
            for (int64_t i = 0; i < num_rows; ++i) {
              p[i] /= sum;
              const T* const row = rows[i] + t * width;
              for (int64_t d = 0; d < width; ++d) y[d] += p[i] * row[d];
            }
          }
        });
    return absl::OkStatus();
  });
}

absl::Status AttentionResidualBackwardCpu(
    const Exec& exec, const AttentionResidualBackwardArgs& args) {
  return DispatchCpu(args.dy.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_tokens = args.dy.dim(0), width = args.dy.dim(1);
    const int64_t num_rows = static_cast<int64_t>(args.rows.size());
    const std::vector<T*> rows = Pointers<T>(args.rows);
    const std::vector<T*> drows = Pointers<T>(args.drows);
    const std::vector<T> direction = Direction<T>(args.norm_weight, args.proj);
    // dscore * rstd of every token and row.
    std::vector<T> slopes(num_tokens * num_rows);
    ParallelFor(exec, num_tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* const p = args.p.data<T>() + t * num_rows;
        const T* const rstd = args.rstd.data<T>() + t * num_rows;
        const T* const dy = args.dy.data<T>() + t * width;
        T* const slope = slopes.data() + t * num_rows;
        T mean = 0;
        for (int64_t i = 0; i < num_rows; ++i) {
          const T* const row = rows[i] + t * width;
          T dp = 0;
          for (int64_t d = 0; d < width; ++d) dp += dy[d] * row[d];
          slope[i] = dp;
          mean += p[i] * dp;
        }
        for (int64_t i = 0; i < num_rows; ++i) {
          slope[i] = p[i] * (slope[i] - mean) * rstd[i];
          if (drows[i] == nullptr) continue;
          const T* const row = rows[i] + t * width;
          T* const drow = drows[i] + t * width;
          T dot = 0;
          for (int64_t d = 0; d < width; ++d) dot += row[d] * direction[d];
          const T along = rstd[i] * rstd[i] * dot / static_cast<T>(width);
          for (int64_t d = 0; d < width; ++d) {
            drow[d] +=
                p[i] * dy[d] + slope[i] * (direction[d] - row[d] * along);
          }
        }
      }
    });
    if (!args.dnorm_weight.present() && !args.dproj.present())
      return absl::OkStatus();
    // By columns, tokens and rows in order, in double.
    ParallelFor(exec, width, 64, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(end - begin);
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t i = 0; i < num_rows; ++i) {
          const T* const row = rows[i] + t * width;
          const T slope = slopes[t * num_rows + i];
          for (int64_t d = begin; d < end; ++d)
            sums[d - begin] += slope * row[d];
        }
      }
      for (int64_t d = begin; d < end; ++d) {
        if (args.dnorm_weight.present()) {
          args.dnorm_weight.data<T>()[d] +=
              static_cast<T>(sums[d - begin] * args.proj.data<T>()[d]);
        }
        if (args.dproj.present()) {
          args.dproj.data<T>()[d] +=
              static_cast<T>(sums[d - begin] * args.norm_weight.data<T>()[d]);
        }
      }
    });
    return absl::OkStatus();
  });
}

}  // namespace cadre
