#ifndef CADRE_KERNELS_COMMON_LAUNCH_CUH_
#define CADRE_KERNELS_COMMON_LAUNCH_CUH_

// How a .cu file starts kernels: one helper that reads the error of the launch,
// and the choice of a kernel by activation dtype. Host side only; stateless,
// safe from any thread that has the device current.
//
//   return DispatchCuda(x.dtype(), [&](auto zero) {
//     using T = decltype(zero);
//     return Launch("l2norm", exec, {.grid = rows, .block = 128}, Kernel<T>,
//                   x.data<T>(), y.data<T>());
//   });

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/common/cuda_status.h"
#include "kernels/common/dtype.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

inline cudaStream_t StreamOf(const Exec& exec) {
  return static_cast<cudaStream_t>(exec.stream);
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic
};

// Starts kernel(args...) on exec's stream. Nothing is started, and OK returned,
// for an empty grid. More than 48 KiB of shared memory is asked for here.
template <typename... Params, typename... Args>
absl::Status Launch(absl::string_view op, const Exec& exec,
                    const LaunchShape& shape, void (*kernel)(Params...),
                    Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0)
    return absl::OkStatus();
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
        static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // not sticky: the next launch starts clean
      return CudaStatus(error,
                        absl::StrCat(op, ": asking for ", shape.shared_bytes,
                                     " bytes of shared memory"));
    }
  }
  kernel<<<shape.grid, shape.block, shape.shared_bytes, StreamOf(exec)>>>(
      static_cast<Params>(std::forward<Args>(args))...);
  return CudaStatus(cudaGetLastError(), absl::StrCat(op, ": launch"));
}

// Calls fn(float{}) or fn(__nv_bfloat16{}) by dtype, which the check narrowed.
template <typename Fn>
absl::Status DispatchCuda(DType dtype, Fn&& fn) {
  if (dtype == DType::kBF16) return fn(__nv_bfloat16{});
  if (dtype == DType::kF32) return fn(float{});
  return absl::InvalidArgumentError(
      absl::StrCat("CUDA activations are f32 or bf16, not ", DTypeName(dtype)));
}

// Blocks for n items at `per_block` each, at most `limit`: for kernels that
// stride over what the grid does not cover.
inline unsigned GridFor(int64_t n, int64_t per_block, int64_t limit = 8192) {
  return static_cast<unsigned>(
      std::min<int64_t>((n + per_block - 1) / per_block, limit));
}

// Whether all of `pointers` are aligned to 16 bytes (null is).
template <typename... P>
bool Aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_LAUNCH_CUH_
