#ifndef CADRE_KERNELS_SHORT_CONV_SHORT_CONV_H_
#define CADRE_KERNELS_SHORT_CONV_SHORT_CONV_H_

// Depthwise causal convolution over a few tokens followed by SiLU, in front of
// linear attention. Documents do not see each other.

#include "absl/status/status.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct ShortConvForwardArgs {
  Tensor x;           // [T,P], channels at `at`
  Tensor w;           // [C,W]; w[:,W-1] multiplies the current token
  Tensor cu_seqlens;  // i32[docs+1]; host on the CPU, device on CUDA
  Tensor y;           // [T,C]
  ColumnGroups at = {};
};

struct ShortConvBackwardArgs {
  Tensor x;
  Tensor w;
  Tensor cu_seqlens;
  Tensor dy;  // [T,C]
  Tensor dx;  // [T,P], the columns of x overwritten, no others
  Tensor dw;  // [C,W], added to; optional
  ColumnGroups at = {};
};

// c_t = sum_j w_j x_{t-W+1+j} with zeros before the document's first token;
// y_t = silu(c_t). Rows from cu_seqlens[docs] on are padding: y = 0, dx = 0,
// and x, dy are not read there.
//
// f32 or f64 on the CPU (w, dw alike); bf16 with f32 w, dw on CUDA. T, C and
// docs may be 0, documents may be empty or shorter than W; W >= 1.
// Aliasing: none of the outputs overlaps an input or another output.
// Determinism: bitwise; dw is summed in token order.
// Cost: reads x, writes y; W multiply-adds an element.
absl::Status ShortConvForward(const Exec& exec,
                              const ShortConvForwardArgs& args);

// dc = dy silu'(c) ;  dx_t = sum_j w_j dc_{t+W-1-j} ;  dw_j += sum_t dc_t
// x_{t-W+1+j}, all inside the document. c is computed again.
absl::Status ShortConvBackward(const Exec& exec,
                               const ShortConvBackwardArgs& args);

}  // namespace cadre

#endif  // CADRE_KERNELS_SHORT_CONV_SHORT_CONV_H_
