#ifndef CADRE_KERNELS_GATED_RMSNORM_GATE_ROWS_H_
#define CADRE_KERNELS_GATED_RMSNORM_GATE_ROWS_H_

// Where the gate of a row begins. Private to the op; a value; pure.

#include <cstdint>

#include "kernels/common/check.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/tensor.h"

namespace cadre {

struct GateRows {
  GateRows(const Tensor& x, const Tensor& gate, const ColumnGroups& at)
      : d(LastDim(x)), at(at) {
    if (at.group == 0 || gate.dim(0) == 0) return;
    heads = NumRows(x) / gate.dim(0);
    pitch = gate.dim(1);
  }
  constexpr int64_t operator()(int64_t row) const {
    if (at.group == 0) return row * d;
    return row / heads * pitch + at.Column(row % heads * d);
  }

  int64_t d;
  ColumnGroups at;
  int64_t heads = 1, pitch = 0;  // where groups are
};

}  // namespace cadre

#endif  // CADRE_KERNELS_GATED_RMSNORM_GATE_ROWS_H_
