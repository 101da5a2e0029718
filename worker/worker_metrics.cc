#include "worker/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "kernels/common/device_error.h"
#include "worker/memory_series.h"
#include "worker/moe_series.h"
#include "worker/train/trainer.h"

namespace cadre {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr const char* kStates[] = {"idle",     "preparing", "ready",  "running",
                                   "stopping", "ended",     "stopped"};
constexpr std::pair<const char*, double StepMetrics::*> kPhases[] = {
    {"total", &StepMetrics::step_seconds},
    {"data", &StepMetrics::data_seconds},
    {"forward", &StepMetrics::forward_seconds},
    {"backward", &StepMetrics::backward_seconds},
    {"reduce", &StepMetrics::reduce_seconds},
    {"optimizer", &StepMetrics::optimizer_seconds},
    {"wait", &StepMetrics::wait_seconds}};

constexpr const char* kOps[] = {"all_reduce", "all_gather", "reduce_scatter",
                                "broadcast",  "all_to_all", "barrier"};

}  // namespace

struct WorkerMetrics::Impl {
  Impl(MetricsRegistry* r, const Identity& id)
      : registry(r),
        moe(r),
        memory(r),
        sync_seconds(r->Histogram(metric::kWorkerSyncSeconds)),
        last_sync(r->Gauge(metric::kWorkerLastSync)),
        steps(r->Counter(metric::kTrainSteps)),
        nonfinite(r->Counter(metric::kTrainNonfiniteSteps)),
        data_wait(r->Counter(metric::kTrainDataWait)),
        tokens_processed(
            r->Counter(metric::kTrainTokens, {{"kind", "processed"}})),
        tokens_loss(r->Counter(metric::kTrainTokens, {{"kind", "loss"}})),
        tokens_padding(r->Counter(metric::kTrainTokens, {{"kind", "padding"}})),
        fill(r->Gauge(metric::kTrainPackingFill)),
        loss(r->Gauge(metric::kTrainLoss)),
        eval_loss(r->Gauge(metric::kTrainEvalLoss)),
        grad_norm(r->Gauge(metric::kTrainGradNorm)),
        learning_rate(r->Gauge(metric::kTrainLearningRate)),
        save_stall(
            r->Histogram(metric::kCheckpointSaveSeconds, {{"phase", "stall"}})),
        save_write(
            r->Histogram(metric::kCheckpointSaveSeconds, {{"phase", "write"}})),
        saves_ok(r->Counter(metric::kCheckpointSaves, {{"result", "ok"}})),
        saves_error(
            r->Counter(metric::kCheckpointSaves, {{"result", "error"}})),
        save_bytes(r->Counter(metric::kCheckpointBytes)),
        load_seconds(r->Histogram(metric::kCheckpointLoadSeconds)),
        model_flops(r->Counter(metric::kTrainModelFlops)),
        mfu(r->Gauge(metric::kTrainMfu)),
        last_save(r->Gauge(metric::kCheckpointLastSuccess)),
        aborts_stop(r->Counter(metric::kCommAborts, {{"cause", "stop"}})),
        aborts_peer(r->Counter(metric::kCommAborts, {{"cause", "peer"}})) {
    r->Gauge(metric::kBuildInfo, {{"version", id.version},
                                  {"commit", id.commit},
                                  {"backend", id.backend}})
        .Set(1);
    r->Gauge(metric::kWorkerInfo, {{"worker", id.worker},
                                   {"hostname", id.hostname},
                                   {"gpu_uuid", id.gpu_uuid},
                                   {"link_domain", id.link_domain}})
        .Set(1);
    for (const char* state : kStates) {
      states[state] = &r->Gauge(metric::kWorkerState, {{"state", state}});
    }
    for (const char* result : {"ok", "error", "stale"}) {
      syncs.push_back(&r->Counter(metric::kWorkerSyncs, {{"result", result}}));
    }
    for (const auto& [phase, unused] : kPhases) {
      phases.push_back(
          &r->Histogram(metric::kTrainStepSeconds, {{"phase", phase}}));
    }
    for (size_t i = 0; i < kNumDeviceErrorKinds; ++i) {
      const char* const kind = DeviceErrorName(static_cast<DeviceErrorKind>(i));
      device_errors[i] = &r->Counter(metric::kDeviceErrors, {{"kind", kind}});
    }
    for (size_t i = 0; i < kNumPhases; ++i) {
      const char* const name = PhaseName(static_cast<Phase>(i));
      pass_phases[i] =
          &r->Counter(metric::kTrainPhaseSeconds, {{"phase", name}});
    }
    phase_optimizer =
        &r->Counter(metric::kTrainPhaseSeconds, {{"phase", "optimizer"}});
    phase_exposed =
        &r->Counter(metric::kTrainPhaseSeconds, {{"phase", "exposed"}});
    for (const char* op : kOps) {
      comm_seconds[op] = &r->Histogram(metric::kCommSeconds, {{"op", op}});
      comm_bytes[op] = &r->Counter(metric::kCommBytes, {{"op", op}});
    }
    ClearJob();
  }

  void ClearJob() {
    for (prometheus::Gauge* gauge :
         {&fill, &loss, &eval_loss, &grad_norm, &learning_rate, &mfu}) {
      gauge->Set(kNan);
    }
    moe.Clear();
    memory.Clear();
  }

  MetricsRegistry* const registry;
  MoeSeries moe;
  MemorySeries memory;
  prometheus::Histogram& sync_seconds;
  prometheus::Gauge& last_sync;
  prometheus::Counter &steps, &nonfinite, &data_wait;
  prometheus::Counter &tokens_processed, &tokens_loss, &tokens_padding;
  prometheus::Gauge &fill, &loss, &eval_loss, &grad_norm, &learning_rate;
  prometheus::Histogram &save_stall, &save_write;
  prometheus::Counter &saves_ok, &saves_error, &save_bytes;
  prometheus::Histogram& load_seconds;
  prometheus::Counter& model_flops;
  prometheus::Gauge& mfu;
  std::array<prometheus::Counter*, kNumDeviceErrorKinds> device_errors{};
  std::array<prometheus::Counter*, kNumPhases> pass_phases{};
  prometheus::Counter *phase_optimizer = nullptr, *phase_exposed = nullptr;
  prometheus::Gauge& last_save;
  prometheus::Counter &aborts_stop, &aborts_peer;
  std::map<std::string, prometheus::Gauge*, std::less<>> states;
  std::vector<prometheus::Counter*> syncs;
  std::vector<prometheus::Histogram*> phases;  // as in kPhases
  std::map<std::string, prometheus::Histogram*, std::less<>> comm_seconds;
  std::map<std::string, prometheus::Counter*, std::less<>> comm_bytes;

  std::mutex mutex;
  MetricLabels assignment;  // empty without one
};

WorkerMetrics::WorkerMetrics(MetricsRegistry* registry,
                             const Identity& identity)
    : impl_(std::make_unique<Impl>(registry, identity)) {}

WorkerMetrics::~WorkerMetrics() = default;

void WorkerMetrics::SetState(absl::string_view state) {
  for (auto& [name, gauge] : impl_->states) gauge->Set(name == state ? 1 : 0);
}

void WorkerMetrics::CountSync(SyncResult result) {
  impl_->syncs[static_cast<size_t>(result)]->Increment();
}

void WorkerMetrics::ObserveSync(absl::Duration duration) {
  impl_->sync_seconds.Observe(absl::ToDoubleSeconds(duration));
}

void WorkerMetrics::SetLastSync(absl::Time time) {
  impl_->last_sync.Set(absl::ToDoubleSeconds(time - absl::UnixEpoch()));
}

void WorkerMetrics::ObserveStep(const StepMetrics& step,
                                const StepShare& share) {
  Impl& m = *impl_;
  m.steps.Increment();
  if (step.skipped) m.nonfinite.Increment();
  m.data_wait.Increment(std::max(0.0, step.data_seconds));
  for (size_t i = 0; i < m.phases.size(); ++i) {
    m.phases[i]->Observe(step.*kPhases[i].second);
  }
  for (size_t i = 0; i < kNumPhases; ++i) {
    m.pass_phases[i]->Increment(std::max(0.0, step.phases[i]));
  }
  m.phase_optimizer->Increment(std::max(0.0, step.optimizer_seconds));
  m.phase_exposed->Increment(std::max(0.0, step.exchanges.exposed_seconds));
  m.model_flops.Increment(share.own_flops);
  if (share.own_flops > 0 && share.peak_flops > 0 && step.step_seconds > 0) {
    m.mfu.Set(share.own_flops / step.step_seconds / share.peak_flops);
  }
  m.memory.Observe(step.memory, share.planned_bytes, share.expected_bytes);
  m.tokens_processed.Increment(static_cast<double>(share.own_tokens));
  m.tokens_loss.Increment(static_cast<double>(share.own_targets));
  m.tokens_padding.Increment(static_cast<double>(share.own_padding));
  const double slots =
      static_cast<double>(share.own_tokens + share.own_padding);
  if (slots > 0) m.fill.Set(static_cast<double>(share.own_tokens) / slots);
  m.moe.Observe(step, {.routed = share.own_routed,
                       .dropped = share.own_dropped,
                       .remapped = share.own_remapped,
                       .padding_rows = share.own_padding_rows});
  if (!share.rank_zero) return;
  m.loss.Set(step.loss);
  m.grad_norm.Set(step.grad_norm);
  m.learning_rate.Set(step.learning_rate);
}

void WorkerMetrics::SetEvalLoss(double loss) { impl_->eval_loss.Set(loss); }

void WorkerMetrics::SetPlanEpoch(int64_t plan_epoch) {
  impl_->moe.SetPlanEpoch(plan_epoch);
}

void WorkerMetrics::ObserveRebalance(int64_t plan_epoch, double seconds) {
  impl_->moe.ObserveRebalance(plan_epoch, seconds);
}

void WorkerMetrics::ObserveCollective(absl::string_view op, int64_t bytes,
                                      double seconds) {
  const std::string name(op);
  const auto it = impl_->comm_seconds.find(name);
  CADRE_CHECK(it != impl_->comm_seconds.end()) << name;
  it->second->Observe(seconds);
  impl_->comm_bytes[name]->Increment(static_cast<double>(bytes));
}

void WorkerMetrics::ObserveSave(double seconds, int64_t bytes, absl::Time now) {
  // Saving is synchronous: the step loop waits for the whole write.
  impl_->save_stall.Observe(seconds);
  impl_->save_write.Observe(seconds);
  impl_->saves_ok.Increment();
  impl_->save_bytes.Increment(static_cast<double>(bytes));
  impl_->last_save.Set(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
}

void WorkerMetrics::CountFailedSave() { impl_->saves_error.Increment(); }

void WorkerMetrics::ObserveLoad(double seconds) {
  impl_->load_seconds.Observe(seconds);
}

void WorkerMetrics::SetDeviceMemory(int64_t used_bytes, int64_t free_bytes) {
  impl_->memory.SetDevice(used_bytes, free_bytes);
}

void WorkerMetrics::CountDeviceError(DeviceErrorKind kind) {
  impl_->device_errors[static_cast<size_t>(kind)]->Increment();
}

void WorkerMetrics::CountAbort(AbortCause cause) {
  (cause == AbortCause::kStop ? impl_->aborts_stop : impl_->aborts_peer)
      .Increment();
}

void WorkerMetrics::JobEntered(const std::string& job, int64_t attempt_epoch,
                               int rank) {
  Impl& m = *impl_;
  std::lock_guard<std::mutex> lock(m.mutex);
  m.assignment = {{"job", job},
                  {"attempt", std::to_string(attempt_epoch)},
                  {"rank", std::to_string(rank)}};
  m.registry->Gauge(metric::kWorkerAssignment, m.assignment).Set(1);
}

void WorkerMetrics::JobLeft() {
  impl_->ClearJob();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->assignment.empty()) return;
  impl_->registry->RemoveGauge(metric::kWorkerAssignment, impl_->assignment);
  impl_->assignment.clear();
}

}  // namespace cadre
