#ifndef CADRE_KERNELS_SHORT_CONV_CONV_FRONT_H_
#define CADRE_KERNELS_SHORT_CONV_CONV_FRONT_H_

// All that stands between the projections of linear attention and its
// recurrence, in one launch: short convolutions, SiLU, and unit length of
// queries and keys.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Query, key or value, or some of their channels.
struct ConvFrontPart {
  Tensor x;  // [T,C]
  Tensor w;  // [C,W], as short_conv.h has it; W alike for all parts
  Tensor y;  // [T,C]
  // C is made of heads of this width, each brought to unit length; 0: no norm.
  int64_t unit_dim = 0;
};

struct ConvFrontForwardArgs {
  std::vector<ConvFrontPart> parts;  // at most 3
  Tensor cu_seqlens;                 // as in short_conv.h
  double eps = 1e-6;
};

struct ConvFrontBackwardPart {
  Tensor x;
  Tensor w;
  Tensor dy;  // [T,C]; holds nothing of use afterwards where unit_dim > 0
  Tensor dx;  // [T,C], overwritten
  Tensor dw;  // [C,W], added to; optional
  int64_t unit_dim = 0;
};

struct ConvFrontBackwardArgs {
  std::vector<ConvFrontBackwardPart> parts;  // at most 3
  Tensor cu_seqlens;
  double eps = 1e-6;
};

// y = unit(silu(conv(x))), where conv and silu are ShortConvForward's and unit
// is L2NormForward's; on CUDA nothing is rounded in between.
//
// Dtypes, padding, aliasing and determinism as there. T and the number of parts
// may be 0. One launch on CUDA where all heads are 64 or 128 wide and W <= 4;
// else a launch for each convolution and each norm.
// Cost: reads x, writes y.
absl::Status ConvFrontForward(const Exec& exec,
                              const ConvFrontForwardArgs& args);

// Gradients of the above. Only x is needed: convolutions are computed again.
// One launch on CUDA under the same conditions, if no dw is wanted.
// Cost: reads x and dy, writes dx.
absl::Status ConvFrontBackward(const Exec& exec,
                               const ConvFrontBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_SHORT_CONV_CONV_FRONT_H_
