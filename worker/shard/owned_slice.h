#ifndef CADRE_WORKER_SHARD_OWNED_SLICE_H_
#define CADRE_WORKER_SHARD_OWNED_SLICE_H_

// The part of a trained parameter that one rank updates: it alone of its group
// keeps optimizer state for it. Plain values.

#include <cstdint>
#include <vector>

#include "kernels/common/tensor.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"

namespace cadre {

struct OwnedSlice {
  Parameter* parameter = nullptr;
  // Elements of the parameter as this rank holds it (of its rows, where it
  // holds some of them).
  int64_t begin = 0, end = 0;
  // Of a sharded unit: where these elements lie between the uses of the unit.
  // Absent: inside the parameter's own tensors.
  Tensor sharded_value, sharded_grad;
  // True on one of the ranks that hold the same elements: it counts them in
  // norms and writes them into checkpoints.
  bool counted = true;

  int64_t size() const { return end - begin; }
  Tensor value() const {
    return sharded_value.present() ? sharded_value
                                   : FlatPart(parameter->value, begin, end);
  }
  Tensor grad() const {
    return sharded_grad.present() ? sharded_grad
                                  : FlatPart(parameter->grad, begin, end);
  }
};

// A stretch of a slice that lies in one piece of the whole logical tensor.
struct Stretch {
  int64_t begin = 0;         // in the slice
  int64_t size = 0;          // elements
  int64_t global_begin = 0;  // in the whole tensor, flat
};

// Where the slice lies, in its order.
std::vector<Stretch> StretchesOf(const OwnedSlice& slice);
// The same without spare copies of rows: what counts in a norm and is saved.
std::vector<Stretch> HomeStretches(const OwnedSlice& slice);

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_OWNED_SLICE_H_
