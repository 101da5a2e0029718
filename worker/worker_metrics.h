#ifndef CADRE_WORKER_WORKER_METRICS_H_
#define CADRE_WORKER_WORKER_METRICS_H_

// The worker's Prometheus series. All are made at start, so that a scrape sees
// zeros (gauges of the present job: NaN while idle) instead of gaps. No label
// holds a job, a layer or an expert. Thread-safe.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/metrics/registry.h"
#include "kernels/common/device_error.h"

namespace cadre {

struct StepMetrics;  // worker/train/trainer.h

class WorkerMetrics {
 public:
  struct Identity {
    std::string version, commit, backend;
    std::string worker, hostname, gpu_uuid, link_domain;
  };
  // `registry` must outlive this.
  WorkerMetrics(MetricsRegistry* registry, const Identity& identity);
  ~WorkerMetrics();

  // "idle", "preparing", "ready", "running", "stopping", "ended", "stopped".
  void SetState(absl::string_view state);

  enum class SyncResult { kOk, kError, kStale };
  void CountSync(SyncResult result);
  void ObserveSync(absl::Duration duration);
  void SetLastSync(absl::Time time);

  // This rank's part of a step: its slots in the packed rows are own_tokens +
  // own_padding.
  struct StepShare {
    bool rank_zero = false;  // loss and the like are shown by rank 0 only
    int64_t own_tokens = 0, own_targets = 0, own_padding = 0;
    // Token-expert pairs.
    int64_t own_routed = 0, own_dropped = 0, own_remapped = 0;
    int64_t own_padding_rows = 0;
    double own_flops = 0.0;      // of the model; 0: not known
    double peak_flops = 0.0;     // of the device, a second; 0: not known
    int64_t planned_bytes = 0;   // 0: not known
    int64_t expected_bytes = 0;  // likewise
  };
  void ObserveStep(const StepMetrics& step, const StepShare& share);
  void SetEvalLoss(double loss);
  void SetPlanEpoch(int64_t plan_epoch);
  // Another placement of the experts is in force; `seconds` it took.
  void ObserveRebalance(int64_t plan_epoch, double seconds);
  // op: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or
  // barrier.
  void ObserveCollective(absl::string_view op, int64_t bytes, double seconds);
  void ObserveSave(double seconds, int64_t bytes, absl::Time now);
  void CountFailedSave();
  // A checkpoint was read.
  void ObserveLoad(double seconds);
  // Of the device; negative: not known.
  void SetDeviceMemory(int64_t used_bytes, int64_t free_bytes);
  // An error of the device ended an attempt.
  void CountDeviceError(DeviceErrorKind kind);
  enum class AbortCause { kStop, kPeer };
  void CountAbort(AbortCause cause);
  // This worker now trains the job of this id; until JobLeft.
  void JobEntered(const std::string& job, int64_t attempt_epoch, int rank);
  // The gauges of a job go back to NaN, its assignment series goes.
  void JobLeft();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_WORKER_METRICS_H_
