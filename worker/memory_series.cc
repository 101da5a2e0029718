#include "worker/memory_series.h"

#include <prometheus/gauge.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "worker/train/trainer.h"

namespace cadre {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The pools of a rank's memory: in the last step, and the most of the attempt.
// Either way they add up to all that the rank holds.
struct Pool {
  const char* name;
  int64_t (*now)(const MemoryUse&);
  int64_t (*peak)(const MemoryUse&);
};
constexpr int64_t Weights(const MemoryUse& m) { return m.weights - m.adapter; }
constexpr int64_t Adapter(const MemoryUse& m) { return m.adapter; }
constexpr int64_t Gradients(const MemoryUse& m) { return m.gradients; }
constexpr int64_t OptimizerState(const MemoryUse& m) { return m.optimizer; }
constexpr int64_t CommBuffers(const MemoryUse& m) {
  return m.gather + m.reduce;
}
constexpr Pool kPools[] = {
    {"weights", &Weights, &Weights},
    {"adapter", &Adapter, &Adapter},
    {"gradients", &Gradients, &Gradients},
    {"optimizer", &OptimizerState, &OptimizerState},
    {"activations",
     [](const MemoryUse& m) { return m.step_activations - m.step_workspace; },
     [](const MemoryUse& m) { return m.activations - m.workspace; }},
    {"workspace", [](const MemoryUse& m) { return m.step_workspace; },
     [](const MemoryUse& m) { return m.workspace; }},
    {"comm", &CommBuffers, &CommBuffers}};

}  // namespace

MemorySeries::MemorySeries(MetricsRegistry* registry)
    : planned_(registry->Gauge(metric::kTrainMemoryPlanned)),
      expected_(registry->Gauge(metric::kTrainMemoryExpected)),
      plan_error_(registry->Gauge(metric::kDeviceMemoryPlanError)),
      other_(registry->Gauge(metric::kDeviceMemory, {{"pool", "other"}})),
      free_(registry->Gauge(metric::kDeviceMemory, {{"pool", "free"}})) {
  static_assert(std::size(kPools) == kNumPools);
  for (size_t i = 0; i < kNumPools; ++i) {
    const char* const pool = kPools[i].name;
    now_[i] = &registry->Gauge(metric::kDeviceMemory, {{"pool", pool}});
    peak_[i] = &registry->Gauge(metric::kDeviceMemoryPeak, {{"pool", pool}});
  }
  Clear();
  SetDevice(-1, -1);
}

void MemorySeries::Observe(const MemoryUse& use, int64_t planned_bytes,
                           int64_t expected_bytes) {
  for (size_t i = 0; i < kNumPools; ++i) {
    now_[i]->Set(static_cast<double>(kPools[i].now(use)));
    peak_[i]->Set(static_cast<double>(kPools[i].peak(use)));
  }
  if (planned_bytes > 0) {
    const auto planned = static_cast<double>(planned_bytes);
    planned_.Set(planned);
    plan_error_.Set(static_cast<double>(use.total()) / planned - 1);
  }
  if (expected_bytes > 0) expected_.Set(static_cast<double>(expected_bytes));
}

void MemorySeries::SetDevice(int64_t used_bytes, int64_t free_bytes) {
  double other = static_cast<double>(used_bytes);
  for (const prometheus::Gauge* gauge : now_) other -= gauge->Value();
  other_.Set(used_bytes < 0 ? kNan : std::max(0.0, other));
  free_.Set(free_bytes < 0 ? kNan : static_cast<double>(free_bytes));
}

void MemorySeries::Clear() {
  for (prometheus::Gauge* gauge : {&planned_, &expected_, &plan_error_}) {
    gauge->Set(kNan);
  }
  for (prometheus::Gauge* gauge : now_) gauge->Set(0);
  for (prometheus::Gauge* gauge : peak_) gauge->Set(kNan);
}

}  // namespace cadre
