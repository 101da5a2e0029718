#ifndef CADRE_WORKER_DEVICE_BUFFER_H_
#define CADRE_WORKER_DEVICE_BUFFER_H_

// Memory where an Exec computes: the host's on the CPU, the GPU's on CUDA. The
// engine allocates through this alone, so that one model serves both. Needs no
// CUDA header; without CUDA linked in, kCuda answers UNIMPLEMENTED.

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// Owning, move-only, at least 64-byte aligned. Views of it (Tensor) must not
// outlive it. Work on exec's stream that uses it must be done before it is
// destroyed or replaced.
class Buffer {
 public:
  // All zero. RESOURCE_EXHAUSTED names `what`, the bytes and what was free.
  static absl::StatusOr<Buffer> Create(const Exec& exec, int64_t num_bytes,
                                       absl::string_view what);

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  Tensor View(DType dtype, absl::Span<const int64_t> dims) const {
    return Tensor(data_, dtype, dims);
  }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
  Backend backend_ = Backend::kCpu;
};

// Host memory that a GPU copies from and to without staging; ordinary memory
// with a CPU exec. Owning, move-only; contents unspecified.
class PinnedBuffer {
 public:
  static absl::StatusOr<PinnedBuffer> Create(const Exec& exec,
                                             int64_t num_bytes,
                                             absl::string_view what);

  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  char* data() const { return static_cast<char*>(data_); }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
  Backend backend_ = Backend::kCpu;
};

// Calls of Buffer::Create and PinnedBuffer::Create in this process, for tests
// that steady steps allocate nothing.
int64_t NumBufferAllocations();

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_BUFFER_H_
