#ifndef CADRE_KERNELS_COMMON_CHECK_H_
#define CADRE_KERNELS_COMMON_CHECK_H_

// What the entry of an op checks before either backend runs: presence, dtype
// and shape of each tensor. Stateless; safe from any thread.

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Matches any size in CheckTensor.
inline constexpr int64_t kAnyDim = -1;

// OK if `tensor` is present, holds `dtype` and has exactly `dims`. The error
// names op, argument, what it is and what it should be.
absl::Status CheckTensor(absl::string_view op, absl::string_view name,
                         const Tensor& tensor, DType dtype,
                         std::initializer_list<int64_t> dims);

// The same, and OK for an absent tensor.
absl::Status CheckOptionalTensor(absl::string_view op, absl::string_view name,
                                 const Tensor& tensor, DType dtype,
                                 std::initializer_list<int64_t> dims);

// OK if `tensor` is present with a rank in [min_rank, Tensor::kMaxRank] and an
// activation dtype of the backend: f32 or f64 on the CPU, bf16 or f32 on CUDA.
absl::Status CheckActivation(const Exec& exec, absl::string_view op,
                             absl::string_view name, const Tensor& tensor,
                             int min_rank);

// OK if `tensor` is present, holds `like`'s dtype and has its shape.
absl::Status CheckLike(absl::string_view op, absl::string_view name,
                       const Tensor& tensor, const Tensor& like);

// OK if `cu_seqlens` is i32[docs + 1] with docs >= 0. On the CPU its values are
// read too: they start at 0, never fall and end at most at num_tokens. (CUDA
// kernels read the table on the device, so a bad one cannot be told here.)
absl::Status CheckCuSeqlens(const Exec& exec, absl::string_view op,
                            const Tensor& cu_seqlens, int64_t num_tokens);

// Dtype of norm weights, decay parameters, gates' logits and states beside
// activations of the given dtype: the same on the CPU, always f32 on CUDA.
DType ParamDType(const Exec& exec, DType activation);

// Size of the last dimension, and the product of all others.
int64_t LastDim(const Tensor& tensor);
int64_t NumRows(const Tensor& tensor);

// Calls fn(float{}) or fn(double{}) by dtype, which the check has narrowed.
template <typename Fn>
absl::Status DispatchCpu(DType dtype, Fn&& fn) {
  if (dtype == DType::kF64) return fn(double{});
  return fn(float{});
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_CHECK_H_
