#ifndef CADRE_WORKER_MODEL_EXPERTS_H_
#define CADRE_WORKER_MODEL_EXPERTS_H_

// The routed experts of one layer on rows that are already in expert order:
// what runs between dispatch and combine. Knows nothing of tokens or ranks.

#include <string>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/context.h"
#include "worker/model/layer_builder.h"

namespace cadre {

// The adapter of one matrix of every expert: y += s (x A_e^T) B_e^T on the rows
// of expert e.
class GroupedLora {
 public:
  GroupedLora() = default;
  explicit GroupedLora(LoraBranch lora) : lora_(lora) {}

  // Adds to columns [column, column + out) of y [R, *].
  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& offsets, const Tensor& y, int64_t column);
  // dy: the same columns of the gradient; adds to dx.
  absl::Status Backward(const LayerContext& ctx, const Tensor& x,
                        const Tensor& offsets, const Tensor& dy, int64_t column,
                        const Tensor& dx);

 private:
  LoraBranch lora_;
  Tensor xa_;
};

class Experts {
 public:
  // Parameters mlp.experts.gate_up_proj [E, 2F, in] (gate rows first) and
  // mlp.experts.down_proj [E, in, F].
  static absl::StatusOr<Experts> Create(const ActivationSpec& activation,
                                        const LayerBuilder& builder);

  int64_t num_experts() const { return gate_up_->value.dim(0); }
  int64_t in() const { return gate_up_->value.dim(2); }

  // rows [R, in], offsets i32 [E + 1] with offsets[E] = R -> out [R, in].
  absl::Status Forward(const LayerContext& ctx, const Tensor& rows,
                       const Tensor& offsets, const Tensor& out);
  // Of the last Forward; d_rows is overwritten.
  absl::Status Backward(const LayerContext& ctx, const Tensor& d_out,
                        const Tensor& d_rows);

 private:
  ActivationSpec activation_;
  Parameter *gate_up_ = nullptr, *down_ = nullptr;
  GroupedLora lora_gate_up_, lora_gate_, lora_up_, lora_down_;
  Tensor rows_, offsets_, pre_, h_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_EXPERTS_H_
