#include "kernels/common/check.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/layernorm/layernorm.h"

namespace cadre {
namespace {

// One block a row; the row is read three times, from the cache after the first.
template <typename T>
__global__ void ForwardKernel(const T* all_x, const float* __restrict__ w,
                              const float* __restrict__ b, int64_t d, float eps,
                              T* all_y) {
  const T* x = all_x + blockIdx.x * d;
  T* y = all_y + blockIdx.x * d;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) sum += ToFloat(x[i]);
  const float mean = BlockSum(sum) / float(d);
  float squares = 0;
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    const float centred = ToFloat(x[i]) - mean;
    squares += centred * centred;
  }
  const float rho = rsqrtf(BlockSum(squares) / float(d) + eps);
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x)
    y[i] = FromFloat<T>((ToFloat(x[i]) - mean) * rho * w[i] + b[i]);
}

}  // namespace

absl::Status LayerNormForwardCuda(const Exec& exec,
                                  const LayerNormForwardArgs& args) {
  const int64_t rows = NumRows(args.x), d = LastDim(args.x);
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return Launch("layernorm", exec,
                  {.grid = unsigned(rows), .block = d <= 256 ? 64u : 256u},
                  ForwardKernel<T>, args.x.data<T>(), args.w.data<float>(),
                  args.b.data<float>(), d, args.eps, args.y.data<T>());
  });
}

}  // namespace cadre
