#ifndef CADRE_WORKER_CHECKPOINT_ORDERS_H_
#define CADRE_WORKER_CHECKPOINT_ORDERS_H_

// Carries out what the coordinator orders about checkpoints: rank 0 seals those
// whose files all ranks have written, and any rank removes folders. Training
// thread only.

#include <cstdint>
#include <map>

#include "worker/session_link.h"
#include "worker/train/trainer.h"
#include "worker/worker_metrics.h"

namespace cadre {

class CheckpointOrders {
 public:
  // Nothing is owned.
  CheckpointOrders(SessionLink* link, WorkerMetrics* metrics)
      : link_(link), metrics_(metrics) {}

  // Rank 0: this rank's files of a save are reported; the order to seal them
  // may come.
  void AddSave(const FilesSaved& saved) { unsealed_[saved.step] = saved; }
  // A save was added that is not sealed yet.
  bool awaits_seal() const { return !unsealed_.empty(); }

  // Carries out the orders that wait.
  void CarryOut();

 private:
  void Seal(const SealRequest& request);

  SessionLink* const link_;
  WorkerMetrics* const metrics_;
  std::map<int64_t, FilesSaved> unsealed_;  // by step
};

}  // namespace cadre

#endif  // CADRE_WORKER_CHECKPOINT_ORDERS_H_
