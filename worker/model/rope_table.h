#ifndef CADRE_WORKER_MODEL_ROPE_TABLE_H_
#define CADRE_WORKER_MODEL_ROPE_TABLE_H_

// The rotary embedding of one layer: a RopeSpec with its inverse frequencies.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/device/buffer.h"
#include "worker/model/context.h"

namespace cadre {

class RopeTable {
 public:
  RopeTable() = default;
  explicit RopeTable(const RopeSpec& spec);

  // Rotates elements [offset, offset + dim) of each row of x [T, heads, row].
  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       int64_t offset) const;
  // The transpose, on gradients, in place.
  absl::Status Backward(const LayerContext& ctx, const Tensor& dx,
                        int64_t offset) const;

 private:
  RopeSpec spec_;
  // The frequencies where ctx.exec is; made at the first call.
  absl::StatusOr<Tensor> InverseFrequencies(const LayerContext& ctx) const;

  mutable std::vector<float> inv_freq_;  // Tensor views are not const
  mutable Buffer device_inv_freq_;       // CUDA
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_ROPE_TABLE_H_
