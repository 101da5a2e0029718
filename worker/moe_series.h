#ifndef CADRE_WORKER_MOE_SERIES_H_
#define CADRE_WORKER_MOE_SERIES_H_

// Prometheus series of a worker's routed experts: how evenly tokens fall on
// them and on the ranks, and what exchanging the tokens takes. Thread-safe.

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/metrics/registry.h"
#include "worker/expert_balance.h"
#include "worker/moe/link_tiers.h"

namespace cadre {

struct StepMetrics;  // worker/train/trainer.h

class MoeSeries {
 public:
  // `registry` must outlive this.
  explicit MoeSeries(MetricsRegistry* registry);

  // Of this rank: pairs of a token and an expert, and rows that are padding.
  struct Own {
    int64_t routed = 0, dropped = 0, remapped = 0;
    int64_t padding_rows = 0;
  };
  void Observe(const StepMetrics& step, const Own& own);
  void SetPlanEpoch(int64_t plan_epoch);
  // Another placement of the experts is in force; `seconds` it took.
  void ObserveRebalance(int64_t plan_epoch, double seconds);
  // There is no job any more.
  void Clear();

 private:
  // How evenly tokens fall on columns: of the last step, and of the layer that
  // does worst over the last ones.
  struct Balance {
    prometheus::Gauge &step, &worst;
  };
  void ObserveExperts(const StepMetrics& step);
  void ObserveRanks(const StepMetrics& step);

  Balance expert_balance_, rank_balance_;
  prometheus::Gauge &plan_epoch_, &cv_mean_, &cv_max_, &dead_mean_, &dead_max_;
  prometheus::Gauge &aux_loss_, &z_loss_;
  prometheus::Histogram &rebalance_seconds_, &dispatch_seconds_,
      &combine_seconds_;
  prometheus::Counter &routed_, &dropped_, &remapped_, &padding_rows_,
      &exposed_seconds_;
  std::array<prometheus::Counter*, kNumLinkTiers> dispatch_bytes_{},
      combine_bytes_{};

  absl::Mutex mutex_;
  LoadWindow expert_window_ ABSL_GUARDED_BY(mutex_);
  LoadWindow rank_window_ ABSL_GUARDED_BY(mutex_);
  // The placement of what rank_window_ holds.
  int64_t window_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_SERIES_H_
