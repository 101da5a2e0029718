#ifndef CADRE_WORKER_MODEL_PASS_INPUTS_H_
#define CADRE_WORKER_MODEL_PASS_INPUTS_H_

// The tables of a micro-batch where the exec computes, with each token's
// position and the mask of the padding. On the CPU they are looked at where
// they lie; to a GPU they travel as one copy. Owns what the views point to but
// the batch's own tables and the device's memory. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/device/arena.h"
#include "worker/model/batch.h"
#include "worker/model/pass_staging.h"

namespace cadre {

// INTERNAL where the tables of a batch contradict each other.
absl::Status CheckBatch(const Batch& batch);

class PassInputs {
 public:
  explicit PassInputs(const Exec& exec)
      : exec_(exec), staging_(exec, "inputs of a pass") {}

  // The views are good until the next call; `batch` must outlive the pass. A
  // GPU's tables lie in `kept`; all of the pass before must be done.
  absl::Status Place(const Batch& batch, Arena* kept);

  const Tensor& ids() const { return ids_; }                   // i32 [T]
  const Tensor& targets() const { return targets_; }           // i32 [T]
  const Tensor& cu_seqlens() const { return cu_seqlens_; }     // i32 [docs + 1]
  const Tensor& positions() const { return positions_view_; }  // i32 [T]
  const Tensor& mask() const { return mask_view_; }  // i32 [T], 0 for padding

 private:
  const Exec exec_;
  std::vector<int32_t> positions_, mask_;
  Tensor ids_, targets_, cu_seqlens_, positions_view_, mask_view_;
  PassStaging staging_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PASS_INPUTS_H_
