#ifndef CADRE_WORKER_MODEL_DENSE_MLP_H_
#define CADRE_WORKER_MODEL_DENSE_MLP_H_

// Gated feed-forward: down(glu(gate(x), up(x))). A dense layer's and a shared
// expert's.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/layer.h"
#include "worker/model/layer_builder.h"

namespace cadre {

class DenseMlp final : public Layer {
 public:
  // `at`: "mlp" or "mlp.shared_experts".
  static absl::StatusOr<std::unique_ptr<Layer>> Create(
      const ActivationSpec& activation, const std::string& at,
      const LayerBuilder& builder);

  absl::Status Forward(const LayerContext& ctx, const Tensor& x,
                       const Tensor& y) override;
  absl::Status Backward(const LayerContext& ctx, const Tensor& dy,
                        const Tensor& dx) override;

 private:
  explicit DenseMlp(const ActivationSpec& activation)
      : activation_(activation) {}

  ActivationSpec activation_;
  Linear gate_, up_, down_;
  Tensor x_, g_, u_, h_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_DENSE_MLP_H_
