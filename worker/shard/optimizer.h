#ifndef CADRE_WORKER_SHARD_OPTIMIZER_H_
#define CADRE_WORKER_SHARD_OPTIMIZER_H_

// AdamW with global-norm clipping over the slices that a rank owns. f32 values
// are their own masters; narrower ones have an f32 master beside them, from
// which they are rounded after every update. m, v and master exist for the
// owned slices alone. Frozen parameters have no state and are never touched.
// Not thread-safe; parameters and slices must outlive it.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/model/parameters.h"
#include "worker/shard/owned_slice.h"

namespace cadre {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;   // on every trained parameter
  double max_grad_norm = 1.0;  // 0: no clipping
};

class Optimizer {
 public:
  struct Slot {
    OwnedSlice slice;
    Tensor m, v;    // [slice.size()]
    Tensor master;  // the same; absent where the value is its own

    // What is updated and saved.
    Tensor weight() const { return master.present() ? master : slice.value(); }
  };

  // INVALID_ARGUMENT when an option is out of range, or when `owned` is empty
  // (a rank may own nothing: `may_be_empty`).
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const Exec& exec, std::vector<OwnedSlice> owned,
      const OptimizerOptions& options, bool may_be_empty = false);
  // All trained parameters of the registry, whole.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const Exec& exec, ParameterRegistry* registry,
      const OptimizerOptions& options);
  virtual ~Optimizer() = default;

  // Sum of the squares of the gradients that this rank counts, in double, in
  // the order of the slots and in fixed pieces: the same bits whatever the
  // number of threads. Not finite when one gradient is not.
  virtual absl::StatusOr<double> GradientSquares() = 0;

  // One update with the gradients scaled by
  //   clip = min(1, max_grad_norm / (norm + 1e-6)).
  // A norm that is not finite updates nothing and returns false.
  virtual absl::StatusOr<bool> Step(double learning_rate, double norm) = 0;

  // In the order of the slices.
  virtual const std::vector<Slot>& slots() const = 0;
  // After slot.weight() was written from outside: values follow their masters.
  virtual absl::Status RoundValues() = 0;
  // After values were written from outside: masters follow them.
  virtual absl::Status TakeValues() = 0;
  // Updates applied so far: AdamW's t.
  virtual int64_t num_updates() const = 0;
  virtual void set_num_updates(int64_t num_updates) = 0;
  // Of m, v and the masters.
  virtual int64_t state_bytes() const = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_OPTIMIZER_H_
