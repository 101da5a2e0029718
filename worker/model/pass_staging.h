#ifndef CADRE_WORKER_MODEL_PASS_STAGING_H_
#define CADRE_WORKER_MODEL_PASS_STAGING_H_

// Host memory for what a pass sends to the device or reads from it; kept from
// pass to pass and doubled beyond need, so that steady steps allocate nothing.
// Owns its memory. Not thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "worker/device/buffer.h"

namespace cadre {

class PassStaging {
 public:
  // `what` is what errors call it; outlives this.
  PassStaging(const Exec& exec, const char* what) : exec_(exec), what_(what) {}

  // At least so many bytes, contents unspecified; good until the next call.
  // Copies from and to earlier memory must be done.
  absl::StatusOr<char*> Take(int64_t bytes) {
    if (buffer_.num_bytes() < bytes) {
      buffer_ = PinnedBuffer();
      CADRE_ASSIGN_OR_RETURN(buffer_,
                             PinnedBuffer::Create(exec_, 2 * bytes, what_));
    }
    return buffer_.data();
  }

 private:
  const Exec exec_;
  const char* const what_;
  PinnedBuffer buffer_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PASS_STAGING_H_
