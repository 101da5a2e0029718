#ifndef CADRE_WORKER_EXPERT_LOAD_REPORTS_H_
#define CADRE_WORKER_EXPERT_LOAD_REPORTS_H_

// Sums of the tokens that experts and ranks got, reported every so many steps:
// what the coordinator decides the placement of experts by. Training thread
// only.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/expert_placement.h"
#include "worker/session_link.h"
#include "worker/train/trainer.h"

namespace cadre {

class ExpertLoadReports {
 public:
  // `moe_layers`: index of each MoE layer in the model; empty: 0, 1, ... Does
  // not own the link.
  ExpertLoadReports(int64_t every, std::vector<int> moe_layers,
                    SessionLink* link)
      : every_(every), moe_layers_(std::move(moe_layers)), link_(link) {}

  // Reports when so many steps are full, and behind the job's last.
  void Add(const StepMetrics& step);
  // What is not reported yet.
  void Flush();
  // In force from the next step on; steps before and after are not mixed.
  void SetPlacement(std::shared_ptr<const ExpertPlacement> placement) {
    Flush();
    placement_ = std::move(placement);
  }
  void SetExpertSize(const ExpertSize& size) { expert_size_ = size; }

 private:
  const int64_t every_;
  const std::vector<int> moe_layers_;
  SessionLink* const link_;
  // Since the last report; [layer][expert] and [layer][rank].
  int64_t first_step_ = 0, last_step_ = 0, steps_left_ = 0;
  std::vector<std::vector<int64_t>> experts_, ranks_;
  std::vector<MoeLayerTotals> totals_;
  double expert_seconds_ = 0.0;
  std::shared_ptr<const ExpertPlacement> placement_;  // null: not spread
  ExpertSize expert_size_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_EXPERT_LOAD_REPORTS_H_
