#ifndef CADRE_WORKER_DEVICE_REGION_H_
#define CADRE_WORKER_DEVICE_REGION_H_

// Device memory that grows in place: addresses are reserved at once, memory is
// put behind them when it is needed. An arena on it needs no second copy of
// itself to grow, which matters where weights take most of a GPU.

#include <cstdint>

#include "absl/status/status.h"

namespace cadre {

class Region {
 public:
  virtual ~Region() = default;
  virtual char* base() const = 0;
  // Bytes with memory behind them.
  virtual int64_t size() const = 0;
  // Memory behind at least the first `num_bytes`. Never moves base().
  // RESOURCE_EXHAUSTED says how much more was wanted and how much was free.
  virtual absl::Status GrowTo(int64_t num_bytes) = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_REGION_H_
