#ifndef CADRE_WORKER_MODEL_PASS_COUNTS_H_
#define CADRE_WORKER_MODEL_PASS_COUNTS_H_

// What a pass counts where the exec computes (losses, tokens of experts, pairs
// dropped), and how it is read when the pass is over: all at once, in the
// pass's only wait for a GPU. Owns the memory read into; the counters lie in
// the arena it is given. Not thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "model/model_spec.h"
#include "worker/comm/communicator.h"
#include "worker/device/arena.h"
#include "worker/device/phase_clock.h"
#include "worker/model/batch.h"
#include "worker/model/context.h"
#include "worker/model/model.h"
#include "worker/model/pass_staging.h"
#include "worker/moe/expert_runtime.h"

namespace cadre {

class PassCounts {
 public:
  PassCounts(const ModelSpec& spec, const ModelOptions& options);

  // Of the model's MoE layers; 0 without.
  int64_t top_k() const { return top_k_; }
  double aux_coefficient() const { return aux_coef_; }  // 0: no auxiliary loss

  // A new pass: counters of zero in `kept`, which is free.
  absl::Status Begin(const Batch& batch, Arena* kept);
  // What routers report to, in this pass.
  RouterTap* routers() { return &routers_; }
  // f64 [1]: where the loss is added up.
  Tensor loss_sum() const { return totals_.Rows(0, 1); }

  // The statistics of auxiliary losses over all ranks (`world`; null: this rank
  // is alone); sums of probabilities and of z-losses stay this rank's, so that
  // the losses of the ranks add up. Between the forward pass and the loss.
  absl::Status SumOverRanks(double aux_weight, Communicator* world);

  // Waits for the pass and reads what it counted; takes the traffic of
  // `experts` (null: all are here) with it.
  absl::StatusOr<ForwardResult> Read(PhaseClock* phases,
                                     ExpertRuntime* experts);

 private:
  // From here on the numbers of all counters, in the order of Read.
  absl::StatusOr<const char*> Fetch(PhaseClock* phases);

  const Exec exec_;
  const DType dtype_;
  const MoeOptions moe_;
  double aux_coef_ = 0;
  int64_t num_experts_ = 0, top_k_ = 0;

  // Of the pass under way.
  RouterTap routers_;
  Tensor totals_;  // f64 [3]: sum of the loss, auxiliary loss, sum of z-losses
  int64_t num_real_tokens_ = 0;
  double inv_tokens_ = 0;  // 1 / real tokens of all ranks
  PassStaging staging_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PASS_COUNTS_H_
