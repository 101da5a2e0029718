#ifndef CADRE_KERNELS_SHORT_CONV_CONV_FRONT_H_
#define CADRE_KERNELS_SHORT_CONV_CONV_FRONT_H_

// All that stands between the projections of linear attention and its
// recurrence, in one launch: short convolutions, SiLU, unit length of queries
// and keys, and the way out of a projection that makes several of them.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Query, key or value, or some of their channels.
struct ConvFrontPart {
  Tensor x;  // [T,P], channels at `at`
  Tensor w;  // [C,W], as short_conv.h has it; W alike for all parts
  Tensor y;  // [T,C]
  // C is made of heads of this width, each brought to unit length; 0: no norm.
  int64_t unit_dim = 0;
  ColumnGroups at = {};
};

// Columns that only have to be somewhere else, such as logits of gates which
// one projection makes.
struct ConvFrontMove {
  Tensor wide;    // param [T,P], channels at `at`
  Tensor narrow;  // param [T,C]
  ColumnGroups at = {};
};

struct ConvFrontForwardArgs {
  std::vector<ConvFrontPart> parts;  // at most 3
  Tensor cu_seqlens;                 // as in short_conv.h
  double eps = 1e-6;
  std::vector<ConvFrontMove> moves;  // at most 2; from wide to narrow
};

struct ConvFrontBackwardPart {
  Tensor x;
  Tensor w;
  Tensor dy;  // [T,C]; holds nothing of use afterwards where unit_dim > 0
  Tensor dx;  // [T,P], the columns of x overwritten, no others
  Tensor dw;  // [C,W], added to; optional
  int64_t unit_dim = 0;
  ColumnGroups at = {};
  // [T,C], workspace: holds nothing of use afterwards. Needed where unit_dim >
  // 0 and x is wider than its channels.
  Tensor spare = {};
};

struct ConvFrontBackwardArgs {
  std::vector<ConvFrontBackwardPart> parts;  // at most 3
  Tensor cu_seqlens;
  double eps = 1e-6;
  std::vector<ConvFrontMove> moves;  // at most 2; from narrow to wide
};

// y = unit(silu(conv(x))), where conv and silu are ShortConvForward's and unit
// is L2NormForward's; on CUDA nothing is rounded in between. Then the moves, of
// padding too.
//
// Dtypes, padding, aliasing and determinism as there; parts may share x, and in
// the backward dx. T and the number of parts may be 0. One launch on CUDA where
// all heads are 64 or 128 wide, W <= 4 and columns come in steps of 4; else a
// launch for each convolution, norm and move.
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
