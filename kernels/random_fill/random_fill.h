#ifndef CADRE_KERNELS_RANDOM_FILL_RANDOM_FILL_H_
#define CADRE_KERNELS_RANDOM_FILL_RANDOM_FILL_H_

// Normally distributed numbers where the tensor lies: the weights of a model
// that starts at random, without a copy of them on the host. Stateless.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct RandomFillArgs {
  Tensor x;  // any shape, overwritten; f32 or f64 on the CPU, f32, bf16 on CUDA
  double deviation = 1.0;
  uint64_t seed = 0;
};

// Elements 2i and 2i + 1 are deviation times the two Box-Muller normals of
// hash(seed, i), computed in f32: they depend on the place and the seed alone.
// The two backends agree to rounding of log, sin and cos. x may be empty.
absl::Status RandomFill(const Exec& exec, const RandomFillArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_RANDOM_FILL_RANDOM_FILL_H_
