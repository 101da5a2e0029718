#ifndef CADRE_WORKER_MODEL_RESIDUAL_MIX_H_
#define CADRE_WORKER_MODEL_RESIDUAL_MIX_H_

// The attention residuals' Mix (models.md 2.10): a learnt softmax over the bank
// of earlier sums and the present one.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/context.h"
#include "worker/model/layer_builder.h"

namespace cadre {

class ResidualMix {
 public:
  ResidualMix() = default;
  // Parameters name + "_res_norm.weight" and name + "_res_proj.weight".
  static absl::StatusOr<ResidualMix> Create(const std::string& name, double eps,
                                            const LayerBuilder& builder);

  // y [T, D] = mix of bank and state.
  absl::Status Forward(const LayerContext& ctx, const std::vector<Tensor>& bank,
                       const Tensor& state, const Tensor& y);
  // Adds to d_bank and d_state.
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const std::vector<Tensor>& d_bank,
                        const Tensor& d_state);

 private:
  Parameter *norm_ = nullptr, *proj_ = nullptr;
  double eps_ = 1e-5;
  std::vector<Tensor> rows_;
  Tensor p_, rstd_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_RESIDUAL_MIX_H_
