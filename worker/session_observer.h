#ifndef CADRE_WORKER_SESSION_OBSERVER_H_
#define CADRE_WORKER_SESSION_OBSERVER_H_

// Hears the trainer at its step boundaries and passes on what matters: state to
// the link, reports to the coordinator, numbers to the metrics. Between two
// steps it lets the orders about checkpoints be carried out. Training thread
// only.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/backend/backend.h"
#include "worker/checkpoint_orders.h"
#include "worker/expert_load_reports.h"
#include "worker/failure.h"
#include "worker/session_link.h"
#include "worker/train/trainer.h"
#include "worker/worker_metrics.h"

namespace cadre {

class SessionObserver final : public TrainObserver, public CollectiveObserver {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    int64_t log_every = 1;
    // Steps between expert-load reports.
    int64_t loads_every = 50;
    // Slots of the packed rows of one step, all ranks.
    int64_t slots_per_step = 0;
    bool resumed = false;
    // Index of each MoE layer in the model; may be empty (then 0, 1, ...).
    std::vector<int> moe_layers;
    // Of the model (worker/model_flops.h) and of this rank's device; 0: not
    // known.
    double flops_per_token = 0.0, peak_flops = 0.0;
    int64_t planned_bytes = 0;        // of the most loaded rank; 0: not known
    int64_t planned_fixed_bytes = 0;  // of them, without activations
  };
  // Nothing is owned.
  SessionObserver(Options options, SessionLink* link, CheckpointOrders* orders,
                  WorkerMetrics* metrics, Clock* clock);

  void OnPreparing(absl::string_view stage, int64_t done,
                   int64_t total) override;
  void OnPhase(TrainPhase phase) override;
  void OnStep(const StepMetrics& step) override;
  void OnEval(const EvalMetrics& eval) override;
  void OnFilesSaved(const FilesSaved& saved) override;
  void OnResumed(double seconds) override;
  void OnEvent(absl::string_view kind, absl::string_view message) override;
  bool StopRequested() override;
  void OnExpertsPlaced(const std::shared_ptr<const ExpertPlacement>& placement,
                       bool from_checkpoint, const ExpertSize& size) override;
  std::shared_ptr<const ExpertPlacement> WantedPlacement() override;
  void OnExpertsMoved(const ExpertsMoved& moved) override;
  void OnCollective(absl::string_view op, int64_t bytes,
                    double seconds) override;

  // Reports the expert loads not reported yet.
  void FlushLoads() { loads_.Flush(); }
  // Reports the memory of this rank unless that was the last that was told.
  void ReportMemory();
  // What is being done now, for the cause of an error.
  Activity activity() const { return activity_; }

 private:
  void ReportEvent(cadre::v1::Event::Severity severity, const std::string& type,
                   const std::string& message);
  void ReportScalars(const StepMetrics& step);
  // What the plan says of the memory for the rows that came; 0: not known.
  int64_t ExpectedBytes(const MemoryUse& memory) const;
  // Of the model, this rank's share.
  double FlopsOf(const StepMetrics& step) const;
  void UpdateProgress(const StepMetrics& step);
  void ReportPlacement(const ExpertsMoved& moved, bool with_layers);

  const Options options_;
  SessionLink* const link_;
  CheckpointOrders* const orders_;
  WorkerMetrics* const metrics_;
  Clock* const clock_;
  Activity activity_ = Activity::kPrepare;
  absl::Duration save_begin_;  // monotonic
  cadre::v1::Progress progress_;
  double step_seconds_ema_ = 0.0;
  double tokens_per_second_ema_ = 0.0;
  int64_t steps_seen_ = 0;
  ExpertLoadReports loads_;
  MemoryUse memory_;  // after the last step
  // As reported last.
  int64_t told_memory_bytes_ = -1, told_expected_bytes_ = -1;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SESSION_OBSERVER_H_
