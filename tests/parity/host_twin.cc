#include "tests/parity/host_twin.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/device/device.h"
#include "worker/device/region.h"

namespace cadre {
namespace parity {
namespace {

float Widen(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even.
uint16_t Narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

absl::Status OnHost(std::initializer_list<TwinTensor> tensors,
                    const std::function<absl::Status(const Exec&)>& run) {
  std::map<void*, std::vector<float>> wide;
  const auto narrow = [](const Tensor& t) {
    return t.present() && t.dtype() == DType::kBF16 && t.raw() != nullptr;
  };
  for (const TwinTensor& t : tensors) {
    if (!narrow(*t.tensor)) continue;
    std::vector<float>& values = wide[t.tensor->raw()];
    const auto n =
        static_cast<size_t>(std::max(t.extent, t.tensor->num_elements()));
    if (values.size() < n) values.resize(n);
  }
  for (auto& [address, values] : wide) {
    const auto* const from = static_cast<const uint16_t*>(address);
    for (size_t i = 0; i < values.size(); ++i) values[i] = Widen(from[i]);
  }
  for (const TwinTensor& t : tensors) {
    if (!narrow(*t.tensor)) continue;
    *t.tensor =
        Tensor(wide[t.tensor->raw()].data(), DType::kF32, t.tensor->dims());
  }
  const absl::Status status = run(Exec());
  for (const auto& [address, values] : wide) {
    auto* const to = static_cast<uint16_t*>(address);
    for (size_t i = 0; i < values.size(); ++i) to[i] = Narrow(values[i]);
  }
  return status;
}

}  // namespace parity

namespace {

class TwinDevice final : public Device {
 public:
  const Exec& exec() const override { return exec_; }
  absl::Status MakeCurrent() override { return absl::OkStatus(); }

 private:
  const Exec exec_ = {.backend = Backend::kCuda};
};

// Addresses of which pages are touched when they are used.
class TwinRegion final : public Region {
 public:
  ~TwinRegion() override { munmap(base_, kBytes); }
  absl::Status Reserve() {
    base_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ != MAP_FAILED) return absl::OkStatus();
    base_ = nullptr;
    return absl::ResourceExhaustedError("host twin: no addresses");
  }
  char* base() const override { return static_cast<char*>(base_); }
  int64_t size() const override { return kBytes; }
  absl::Status GrowTo(int64_t num_bytes) override {
    return num_bytes <= kBytes
               ? absl::OkStatus()
               : absl::ResourceExhaustedError("host twin: too large");
  }

 private:
  static constexpr int64_t kBytes = int64_t{1} << 32;
  void* base_ = nullptr;
};

absl::StatusOr<void*> HostMemory(int64_t num_bytes) {
  void* const data = std::calloc(num_bytes + 1, 1);
  if (data != nullptr) return data;
  return absl::ResourceExhaustedError("host twin: out of memory");
}

}  // namespace

// What device.cc and cuda_calls.h declare.
absl::StatusOr<std::unique_ptr<Device>> CudaOpenDevice(int) {
  return std::make_unique<TwinDevice>();
}
absl::StatusOr<void*> CudaAllocate(int64_t num_bytes, absl::string_view) {
  return HostMemory(num_bytes);
}
void CudaFree(void* data) { std::free(data); }
absl::StatusOr<void*> CudaAllocatePinned(int64_t num_bytes, absl::string_view) {
  return HostMemory(num_bytes);
}
void CudaFreePinned(void* data) { std::free(data); }
absl::Status CudaCopy(void*, void* to, const void* from, int64_t num_bytes) {
  std::memmove(to, from, num_bytes);
  return absl::OkStatus();
}
absl::Status CudaZero(void*, void* data, int64_t num_bytes) {
  std::memset(data, 0, num_bytes);
  return absl::OkStatus();
}
absl::Status CudaSynchronize(void*) { return absl::OkStatus(); }
absl::StatusOr<std::unique_ptr<Region>> CudaReserveRegion(void*,
                                                          absl::string_view) {
  auto region = std::make_unique<TwinRegion>();
  const absl::Status status = region->Reserve();
  if (!status.ok()) return status;
  return region;
}

}  // namespace cadre
