#ifndef CADRE_WORKER_SHARD_OPTIMIZER_H_
#define CADRE_WORKER_SHARD_OPTIMIZER_H_

// AdamW with global-norm clipping over the trainable parameters of a registry.
// Values are the f32 masters; m and v lie beside them. Frozen parameters have
// no state and are never touched. Not thread-safe; the registry must outlive
// it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/model/parameters.h"

namespace cadre {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;   // on every trained parameter
  double max_grad_norm = 1.0;  // 0: no clipping
};

class Optimizer {
 public:
  struct Slot {
    Parameter* parameter = nullptr;
    Tensor m, v;  // shape of the parameter
  };

  // INVALID_ARGUMENT when nothing is trained or an option is out of range.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const Exec& exec, ParameterRegistry* registry,
      const OptimizerOptions& options);
  virtual ~Optimizer() = default;

  // Sum of the squares of the gradients, in double, in the registry's order and
  // in fixed pieces: the same bits whatever the number of threads. Not finite
  // when one gradient is not.
  virtual absl::StatusOr<double> GradientSquares() = 0;

  // One update with the gradients scaled by
  //   clip = min(1, max_grad_norm / (norm + 1e-6)).
  // A norm that is not finite updates nothing and returns false.
  virtual absl::StatusOr<bool> Step(double learning_rate, double norm) = 0;

  // In the registry's order.
  virtual const std::vector<Slot>& slots() const = 0;
  // Updates applied so far: AdamW's t.
  virtual int64_t num_updates() const = 0;
  virtual void set_num_updates(int64_t num_updates) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_OPTIMIZER_H_
