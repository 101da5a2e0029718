#ifndef CADRE_WORKER_DEVICE_HOST_BUFFER_H_
#define CADRE_WORKER_DEVICE_HOST_BUFFER_H_

// Owning, 64-byte aligned host memory; move-only. Views of it (Tensor) must not
// outlive it.

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "absl/types/span.h"
#include "kernels/common/tensor.h"

namespace cadre {

class HostBuffer {
 public:
  HostBuffer() = default;
  // Zeroed.
  explicit HostBuffer(int64_t num_bytes)
      : data_(std::aligned_alloc(64, (num_bytes + 64) / 64 * 64), &std::free),
        num_bytes_(num_bytes) {
    CADRE_CHECK(data_ != nullptr) << "out of memory: " << num_bytes << " bytes";
    std::memset(data_.get(), 0, num_bytes);
  }

  void* data() const { return data_.get(); }
  int64_t num_bytes() const { return num_bytes_; }
  Tensor View(DType dtype, absl::Span<const int64_t> dims) const {
    return Tensor(data_.get(), dtype, dims);
  }

 private:
  std::unique_ptr<void, void (*)(void*)> data_{nullptr, &std::free};
  int64_t num_bytes_ = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_HOST_BUFFER_H_
