#ifndef CADRE_TESTS_PARITY_HOST_TWIN_H_
#define CADRE_TESTS_PARITY_HOST_TWIN_H_

// A GPU played by the host: every op's CUDA side is its CPU side over values
// widened to float32, and each result is rounded to the type of the tensor that
// the GPU would write. What runs is the model as it is on a GPU, with bf16 and
// f32 where the GPU has them; an error against float32 is the one that these
// roundings cost, without those inside a kernel. Linking it in is all there is
// to do: it defines the weak symbols of kernels/common/exec.h. Never in one
// program with //kernels:cuda.

#include <functional>
#include <initializer_list>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre::parity {

// A tensor of an op's arguments, and how many elements it reaches over if that
// is more than its own (a matrix with a pitch).
struct TwinTensor {
  TwinTensor(Tensor* t) : tensor(t) {}  // NOLINT: lists of &a.x
  TwinTensor(Tensor* t, int64_t n) : tensor(t), extent(n) {}

  Tensor* tensor;
  int64_t extent = 0;
};

// Replaces bf16 tensors by float32 copies, runs, and rounds them back. Tensors
// of one address are one tensor.
absl::Status OnHost(std::initializer_list<TwinTensor> tensors,
                    const std::function<absl::Status(const Exec&)>& run);

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_HOST_TWIN_H_
