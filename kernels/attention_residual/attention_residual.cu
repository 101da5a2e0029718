#include "base/status_macros.h"
#include "kernels/attention_residual/attention_residual.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"

namespace cadre {
namespace {

constexpr char kOp[] = "attention_residual";

template <typename T>
struct Rows {
  T* row[kMaxAttentionResidualRows];
};

template <typename T>
Rows<T> ToDevice(const std::vector<Tensor>& tensors) {
  Rows<T> out = {};
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.row[i] = tensors[i].present() ? tensors[i].data<T>() : nullptr;
  }
  return out;
}

unsigned BlockFor(int64_t width) { return width <= 256 ? 64 : 256; }

// A block is a token; its rows are read twice, the second time from the cache.
template <typename T>
__global__ void ForwardKernel(Rows<T> rows, int num_rows,
                              const float* __restrict__ norm_weight,
                              const float* __restrict__ proj, int64_t width,
                              float eps, T* all_y, float* all_p,
                              float* all_rstd) {
  __shared__ float p[kMaxAttentionResidualRows];
  const int64_t at = int64_t(blockIdx.x) * width;
  for (int i = 0; i < num_rows; ++i) {
    float squares = 0, dot = 0;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float x = ToFloat(rows.row[i][at + d]);
      squares += x * x;
      dot += x * norm_weight[d] * proj[d];
    }
    squares = BlockSum(squares);
    dot = BlockSum(dot);
    const float rstd = rsqrtf(squares / float(width) + eps);
    if (threadIdx.x == 0) {
      p[i] = rstd * dot;
      all_rstd[int64_t(blockIdx.x) * num_rows + i] = rstd;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float largest = p[0], sum = 0;
    for (int i = 1; i < num_rows; ++i) largest = fmaxf(largest, p[i]);
    for (int i = 0; i < num_rows; ++i) sum += p[i] = expf(p[i] - largest);
    for (int i = 0; i < num_rows; ++i) {
      p[i] = __fdiv_rn(p[i], sum);
      all_p[int64_t(blockIdx.x) * num_rows + i] = p[i];
    }
  }
  __syncthreads();
  for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
    float y = 0;
    for (int i = 0; i < num_rows; ++i) y += p[i] * ToFloat(rows.row[i][at + d]);
    all_y[at + d] = FromFloat<T>(y);
  }
}

// Also leaves dscore * rstd of every row in `slopes`.
template <typename T>
__global__ void BackwardKernel(Rows<const T> rows, Rows<T> drows, int num_rows,
                               const float* __restrict__ norm_weight,
                               const float* __restrict__ proj, int64_t width,
                               const float* __restrict__ all_p,
                               const float* __restrict__ all_rstd,
                               const T* __restrict__ all_dy, float* slopes) {
  __shared__ float slope[kMaxAttentionResidualRows];
  __shared__ float dots[kMaxAttentionResidualRows];
  const int64_t at = int64_t(blockIdx.x) * width;
  const int64_t first = int64_t(blockIdx.x) * num_rows;
  for (int i = 0; i < num_rows; ++i) {
    float dp = 0, dot = 0;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float x = ToFloat(rows.row[i][at + d]);
      dp += ToFloat(all_dy[at + d]) * x;
      dot += x * norm_weight[d] * proj[d];
    }
    dp = BlockSum(dp);
    dot = BlockSum(dot);
    if (threadIdx.x == 0) {
      slope[i] = dp;
      dots[i] = dot;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float mean = 0;
    for (int i = 0; i < num_rows; ++i) mean += all_p[first + i] * slope[i];
    for (int i = 0; i < num_rows; ++i) {
      const float rstd = all_rstd[first + i];
      slope[i] = all_p[first + i] * (slope[i] - mean) * rstd;
      dots[i] *= rstd * rstd / float(width);
      slopes[first + i] = slope[i];
    }
  }
  __syncthreads();
  for (int i = 0; i < num_rows; ++i) {
    T* const drow = drows.row[i];
    if (drow == nullptr) continue;
    const float p = all_p[first + i];
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float along = ToFloat(rows.row[i][at + d]) * dots[i];
      drow[at + d] =
          FromFloat<T>(ToFloat(drow[at + d]) + p * ToFloat(all_dy[at + d]) +
                       slope[i] * (norm_weight[d] * proj[d] - along));
    }
  }
}

// d(norm_weight) or d(proj): sum over tokens and rows of slope x, times the
// other one of the two.
template <typename T>
absl::Status SumSlopes(const Exec& exec, const Rows<const T>& rows,
                       int64_t tokens, int64_t num_rows, int64_t width,
                       const float* slopes, const float* other, float* out) {
  return SumRows(kOp, exec, tokens * num_rows, width, /*accumulate=*/true, out,
                 [=] __device__(int64_t r, int64_t c) {
                   const T* const row = rows.row[r % num_rows];
                   const float x = ToFloat(row[r / num_rows * width + c]);
                   return slopes[r] * x * other[c];
                 });
}

}  // namespace

absl::Status AttentionResidualForwardCuda(
    const Exec& exec, const AttentionResidualForwardArgs& args) {
  const int64_t tokens = args.y.dim(0), width = args.y.dim(1);
  return DispatchCuda(args.y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch(kOp, exec,
                  {.grid = dim3(unsigned(tokens)), .block = BlockFor(width)},
                  ForwardKernel<T>, ToDevice<T>(args.rows), args.rows.size(),
                  args.norm_weight.data<float>(), args.proj.data<float>(),
                  width, args.eps, args.y.data<T>(), args.p.data<float>(),
                  args.rstd.data<float>());
  });
}

absl::Status AttentionResidualBackwardCuda(
    const Exec& exec, const AttentionResidualBackwardArgs& args) {
  const int64_t tokens = args.dy.dim(0), width = args.dy.dim(1);
  const auto num_rows = static_cast<int64_t>(args.rows.size());
  const float* const norm_weight = args.norm_weight.data<float>();
  const float* const proj = args.proj.data<float>();
  float* const slopes = args.slopes.data<float>();
  return DispatchCuda(args.dy.dtype(), [&](auto zero) -> absl::Status {
    using T = decltype(zero);
    const Rows<const T> rows = [&] {
      Rows<const T> out = {};
      for (int64_t i = 0; i < num_rows; ++i) {
        out.row[i] = args.rows[i].template data<T>();
      }
      return out;
    }();
    CADRE_RETURN_IF_ERROR(Launch(
        kOp, exec, {.grid = dim3(unsigned(tokens)), .block = BlockFor(width)},
        BackwardKernel<T>, rows, ToDevice<T>(args.drows), num_rows, norm_weight,
        proj, width, args.p.data<float>(), args.rstd.data<float>(),
        args.dy.data<T>(), slopes));
    if (args.dnorm_weight.present()) {
      CADRE_RETURN_IF_ERROR(SumSlopes<T>(exec, rows, tokens, num_rows, width,
                                         slopes, proj,
                                         args.dnorm_weight.data<float>()));
    }
    if (!args.dproj.present()) return absl::OkStatus();
    return SumSlopes<T>(exec, rows, tokens, num_rows, width, slopes,
                        norm_weight, args.dproj.data<float>());
  });
}

}  // namespace cadre
