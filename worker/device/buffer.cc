#include "worker/device/buffer.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda_calls.h"

namespace cadre {
namespace {

std::atomic<int64_t> num_allocations{0};

absl::StatusOr<void*> HostAllocate(int64_t num_bytes, absl::string_view what) {
  void* data = std::aligned_alloc(64, (num_bytes + 64) / 64 * 64);
  if (data != nullptr) return data;
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": no ", num_bytes,
                   " bytes of host memory; lower the batch or the "
                   "sequence length, or add memory"));
}

}  // namespace

int64_t NumBufferAllocations() { return num_allocations; }

absl::StatusOr<Buffer> Buffer::Create(const Exec& exec, int64_t num_bytes,
                                      absl::string_view what) {
  Buffer buffer;
  buffer.backend_ = exec.backend;
  if (exec.backend == Backend::kCpu) {
    CADRE_ASSIGN_OR_RETURN(buffer.data_, HostAllocate(num_bytes, what));
    std::memset(buffer.data_, 0, num_bytes);
  } else {
    if (CudaAllocate == nullptr) return NoCudaError(what);
    CADRE_ASSIGN_OR_RETURN(buffer.data_, CudaAllocate(num_bytes, what));
    buffer.num_bytes_ = num_bytes;
    CADRE_RETURN_IF_ERROR(CudaZero(exec.stream, buffer.data_, num_bytes));
  }
  buffer.num_bytes_ = num_bytes;
  ++num_allocations;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(backend_, other.backend_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (backend_ == Backend::kCpu) {
    std::free(data_);
  } else {
    CudaFree(data_);
  }
}

absl::StatusOr<PinnedBuffer> PinnedBuffer::Create(const Exec& exec,
                                                  int64_t num_bytes,
                                                  absl::string_view what) {
  PinnedBuffer buffer;
  buffer.backend_ = exec.backend;
  if (exec.backend == Backend::kCpu) {
    CADRE_ASSIGN_OR_RETURN(buffer.data_, HostAllocate(num_bytes, what));
  } else {
    if (CudaAllocatePinned == nullptr) return NoCudaError(what);
    CADRE_ASSIGN_OR_RETURN(buffer.data_, CudaAllocatePinned(num_bytes, what));
  }
  buffer.num_bytes_ = num_bytes;
  ++num_allocations;
  return buffer;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(backend_, other.backend_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ == nullptr) return;
  if (backend_ == Backend::kCpu) {
    std::free(data_);
  } else {
    CudaFreePinned(data_);
  }
}

}  // namespace cadre
