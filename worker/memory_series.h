#ifndef CADRE_WORKER_MEMORY_SERIES_H_
#define CADRE_WORKER_MEMORY_SERIES_H_

// Prometheus series of what a worker's device holds, by pool and against the
// plan. Thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/metrics/registry.h"

namespace cadre {

struct MemoryUse;  // worker/train/trainer.h

class MemorySeries {
 public:
  // `registry` must outlive this.
  explicit MemorySeries(MetricsRegistry* registry);

  // What a step held, and what was planned and expected of its rank; 0 bytes:
  // not known.
  void Observe(const MemoryUse& use, int64_t planned_bytes,
               int64_t expected_bytes);
  // Of the whole device; negative: not known.
  void SetDevice(int64_t used_bytes, int64_t free_bytes);
  // There is no job any more.
  void Clear();

 private:
  static constexpr size_t kNumPools = 7;

  prometheus::Gauge &planned_, &expected_, &plan_error_;
  prometheus::Gauge &other_, &free_;
  std::array<prometheus::Gauge*, kNumPools> now_{}, peak_{};
};

}  // namespace cadre

#endif  // CADRE_WORKER_MEMORY_SERIES_H_
