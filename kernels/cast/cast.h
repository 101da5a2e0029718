#ifndef CADRE_KERNELS_CAST_CAST_H_
#define CADRE_KERNELS_CAST_CAST_H_

// The same numbers in another floating type: f32 gradients of router logits and
// gates before a bf16 product, bf16 weights from their f32 masters. Stateless.

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// to = from, element by element, rounded to nearest even where it is narrower.
// Shapes equal by number of elements; may be empty. f32 and f64 on the CPU, f32
// and bf16 on CUDA, in any pairing. Aliasing: none. Deterministic.
absl::Status Cast(const Exec& exec, const Tensor& from, const Tensor& to);

}  // namespace cadre

#endif  // CADRE_KERNELS_CAST_CAST_H_
