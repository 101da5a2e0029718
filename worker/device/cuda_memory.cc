// The CUDA side of buffer.h, transfer.h and arena.h.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "kernels/common/device_error.h"
#include "worker/device/cuda_calls.h"

namespace cadre {
namespace {

// What a failed allocation adds to its error.
std::string FreeMemory() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return absl::StrCat("; ", free, " of the GPU's ", total,
                      " bytes are free: lower training.micro_batch_size or "
                      "data.max_seq_len, turn on "
                      "parallelism.activation_checkpointing, or use more GPUs");
}

absl::Status MemoryError(cudaError_t error, absl::string_view what,
                         int64_t num_bytes) {
  // Not sticky: later calls must not see it again.
  cudaGetLastError();
  const absl::Status status = CudaStatus(
      error, absl::StrCat(what, ": allocating ", num_bytes, " bytes"));
  return absl::Status(
      status.code(), absl::StrCat(std::string(status.message()), FreeMemory()));
}

// The driver's functions are asked for at run time: the library is not there
// on machines without a GPU.
template <typename Function>
absl::Status LoadDriverCall(const char* name, Function* out) {
  void* pointer = nullptr;
  cudaDriverEntryPointQueryResult result;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDriverEntryPointByVersion(name, &pointer, 12000,
                                                  cudaEnableDefault, &result),
                 absl::StrCat("looking up ", name)));
  if (result != cudaDriverEntryPointSuccess || pointer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the driver has no ", name, "; install a driver for CUDA 13"));
  }
  *out = reinterpret_cast<Function>(pointer);
  return absl::OkStatus();
}

struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;

  absl::Status Load() {
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemAddressReserve", &reserve));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemAddressFree", &free));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemCreate", &create));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemRelease", &release));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemMap", &map));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemUnmap", &unmap));
    CADRE_RETURN_IF_ERROR(LoadDriverCall("cuMemSetAccess", &set_access));
    return LoadDriverCall("cuGetErrorName", &error_name);
  }
  absl::Status ToStatus(CUresult result, absl::string_view call) const {
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    const char* name = nullptr;
    error_name(result, &name);
    const std::string message =
        absl::StrCat(call, ": ", name == nullptr ? "unknown error" : name);
    return result == CUDA_ERROR_OUT_OF_MEMORY
               ? WithDeviceError(absl::ResourceExhaustedError(
                                     absl::StrCat(message, FreeMemory())),
                                 DeviceErrorKind::kOutOfMemory)
               : WithDeviceError(absl::InternalError(message),
                                 DeviceErrorKind::kOther);
  }
};

constexpr int64_t kGrowBytes = int64_t{64} << 20;

class CudaRegion final : public Region {
 public:
  CudaRegion(std::string what, void* stream)
      : what_(std::move(what)), stream_(stream) {}

  absl::Status Reserve() {
    CADRE_RETURN_IF_ERROR(driver_.Load());
    int device = 0;
    CADRE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
    cudaDeviceProp properties;
    CADRE_RETURN_IF_ERROR(
        CudaStatus(cudaGetDeviceProperties(&properties, device),
                   "cudaGetDeviceProperties"));
    location_ = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    // An arena can never hold more than the whole GPU.
    capacity_ = RoundUp(static_cast<int64_t>(properties.totalGlobalMem));
    return driver_.ToStatus(
        driver_.reserve(&base_, static_cast<size_t>(capacity_), 0, 0, 0),
        absl::StrCat(what_, ": reserving ", capacity_, " bytes of addresses"));
  }

  ~CudaRegion() override {
    if (base_ == 0) return;
    cudaStreamSynchronize(static_cast<cudaStream_t>(stream_));
    int64_t at = 0;
    for (const Piece& piece : pieces_) {
      driver_.unmap(base_ + at, static_cast<size_t>(piece.size));
      driver_.release(piece.handle);
      at += piece.size;
    }
    driver_.free(base_, static_cast<size_t>(capacity_));
  }

  char* base() const override { return reinterpret_cast<char*>(base_); }
  int64_t size() const override { return size_; }

  absl::Status GrowTo(int64_t num_bytes) override {
    const int64_t more = RoundUp(num_bytes) - size_;
    if (more <= 0) return absl::OkStatus();
    if (size_ + more > capacity_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what_, ": ", num_bytes,
                       " bytes are more than the GPU's ", capacity_));
    }
    const CUmemAllocationProp property = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = location_};
    Piece piece{.size = more};
    CADRE_RETURN_IF_ERROR(driver_.ToStatus(
        driver_.create(&piece.handle, static_cast<size_t>(more), &property, 0),
        absl::StrCat(what_, ": growing from ", size_, " to ", size_ + more,
                     " bytes")));
    absl::Status status =
        driver_.ToStatus(driver_.map(base_ + size_, static_cast<size_t>(more),
                                     0, piece.handle, 0),
                         absl::StrCat(what_, ": mapping memory"));
    if (status.ok()) {
      const CUmemAccessDesc access = {
          .location = location_, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      status = driver_.ToStatus(
          driver_.set_access(base_ + size_, static_cast<size_t>(more), &access,
                             1),
          absl::StrCat(what_, ": opening memory to the GPU"));
      if (!status.ok()) driver_.unmap(base_ + size_, static_cast<size_t>(more));
    }
    if (!status.ok()) {
      driver_.release(piece.handle);
      return status;
    }
    pieces_.push_back(piece);
    size_ += more;
    return absl::OkStatus();
  }

 private:
  struct Piece {
    CUmemGenericAllocationHandle handle = 0;
    int64_t size = 0;
  };
  static int64_t RoundUp(int64_t n) {
    return (n + kGrowBytes - 1) / kGrowBytes * kGrowBytes;
  }

  const std::string what_;
  void* const stream_;
  Driver driver_;
  CUmemLocation location_ = {};
  CUdeviceptr base_ = 0;
  int64_t capacity_ = 0, size_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

absl::StatusOr<void*> CudaAllocate(int64_t num_bytes, absl::string_view what) {
  void* data = nullptr;
  const cudaError_t error =
      cudaMalloc(&data, static_cast<size_t>(std::max<int64_t>(num_bytes, 1)));
  if (error != cudaSuccess) return MemoryError(error, what, num_bytes);
  return data;
}

void CudaFree(void* data) {
  const absl::Status status = CudaStatus(cudaFree(data), "cudaFree");
  if (!status.ok()) CADRE_LOG(WARNING) << status.message();
}

absl::StatusOr<void*> CudaAllocatePinned(int64_t num_bytes,
                                         absl::string_view what) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(
      &data, static_cast<size_t>(std::max<int64_t>(num_bytes, 1)));
  if (error != cudaSuccess) {
    return MemoryError(error, absl::StrCat(what, " (pinned host memory)"),
                       num_bytes);
  }
  return data;
}

void CudaFreePinned(void* data) {
  const absl::Status status = CudaStatus(cudaFreeHost(data), "cudaFreeHost");
  if (!status.ok()) CADRE_LOG(WARNING) << status.message();
}

absl::Status CudaCopy(void* stream, void* to, const void* from,
                      int64_t num_bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes),
                      cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
      absl::StrCat("copying ", num_bytes, " bytes"));
}

absl::Status CudaZero(void* stream, void* data, int64_t num_bytes) {
  return CudaStatus(cudaMemsetAsync(data, 0, static_cast<size_t>(num_bytes),
                                    static_cast<cudaStream_t>(stream)),
                    absl::StrCat("zeroing ", num_bytes, " bytes"));
}

absl::Status CudaSynchronize(void* stream) {
  return CudaStatus(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)),
                    "waiting for the GPU's work");
}

absl::StatusOr<std::unique_ptr<Region>> CudaReserveRegion(
    void* stream, absl::string_view what) {
  auto region = std::make_unique<CudaRegion>(
      std::string(what.data(), what.size()), stream);
  CADRE_RETURN_IF_ERROR(region->Reserve());
  return region;
}

}  // namespace cadre
