#include "worker/device/transfer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/cuda_calls.h"

namespace cadre {
namespace {

absl::Status Copy(const Exec& exec, void* to, const void* from,
                  int64_t num_bytes) {
  if (num_bytes == 0) return absl::OkStatus();
  if (exec.backend == Backend::kCpu) {
    std::memcpy(to, from, num_bytes);
    return absl::OkStatus();
  }
  if (CudaCopy == nullptr) return NoCudaError("copying to the GPU");
  return CudaCopy(exec.stream, to, from, num_bytes);
}

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

absl::Status CheckFloats(const Tensor& tensor, size_t count) {
  const bool fits = tensor.dtype() == DType::kF32 ||
                    tensor.dtype() == DType::kF64 ||
                    tensor.dtype() == DType::kBF16;
  if (fits && tensor.num_elements() == static_cast<int64_t>(count)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "moving ", count, " floats to or from ", tensor.DebugString()));
}

}  // namespace

absl::Status CopyToDevice(const Exec& exec, const void* from,
                          const Tensor& to) {
  CADRE_RETURN_IF_ERROR(Copy(exec, to.raw(), from, to.num_bytes()));
  return Synchronize(exec);
}

absl::Status CopyToDeviceAsync(const Exec& exec, const void* from,
                               const Tensor& to) {
  return Copy(exec, to.raw(), from, to.num_bytes());
}

absl::Status CopyToHostAsync(const Exec& exec, const Tensor& from, void* to) {
  return Copy(exec, to, from.raw(), from.num_bytes());
}

absl::Status CopyToHost(const Exec& exec, const Tensor& from, void* to) {
  CADRE_RETURN_IF_ERROR(Copy(exec, to, from.raw(), from.num_bytes()));
  return Synchronize(exec);
}

absl::Status CopyOnDevice(const Exec& exec, const Tensor& from,
                          const Tensor& to) {
  if (from.num_bytes() != to.num_bytes()) {
    return absl::InternalError(
        absl::StrCat("copying ", from.DebugString(), " to ", to.DebugString()));
  }
  return Copy(exec, to.raw(), from.raw(), from.num_bytes());
}

absl::Status SetZero(const Exec& exec, const Tensor& tensor) {
  if (tensor.num_bytes() == 0) return absl::OkStatus();
  if (exec.backend == Backend::kCpu) {
    std::memset(tensor.raw(), 0, tensor.num_bytes());
    return absl::OkStatus();
  }
  if (CudaZero == nullptr) return NoCudaError("zeroing GPU memory");
  return CudaZero(exec.stream, tensor.raw(), tensor.num_bytes());
}

absl::Status Synchronize(const Exec& exec) {
  if (exec.backend == Backend::kCpu) return absl::OkStatus();
  if (CudaSynchronize == nullptr) return NoCudaError("waiting for the GPU");
  return CudaSynchronize(exec.stream);
}

absl::Status ReadFloats(const Exec& exec, const Tensor& from,
                        absl::Span<float> to) {
  CADRE_RETURN_IF_ERROR(CheckFloats(from, to.size()));
  if (from.dtype() == DType::kF32) return CopyToHost(exec, from, to.data());
  if (from.dtype() == DType::kF64) {
    std::vector<double> wide(to.size());
    CADRE_RETURN_IF_ERROR(CopyToHost(exec, from, wide.data()));
    std::copy(wide.begin(), wide.end(), to.begin());
    return absl::OkStatus();
  }
  std::vector<uint16_t> narrow(to.size());
  CADRE_RETURN_IF_ERROR(CopyToHost(exec, from, narrow.data()));
  for (size_t i = 0; i < to.size(); ++i) to[i] = FromBf16(narrow[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadFloats(const Exec& exec,
                                              const Tensor& from) {
  std::vector<float> to(from.num_elements());
  CADRE_RETURN_IF_ERROR(ReadFloats(exec, from, absl::MakeSpan(to)));
  return to;
}

absl::Status WriteFloats(const Exec& exec, absl::Span<const float> from,
                         const Tensor& to) {
  CADRE_RETURN_IF_ERROR(CheckFloats(to, from.size()));
  if (to.dtype() == DType::kF32) return CopyToDevice(exec, from.data(), to);
  if (to.dtype() == DType::kF64) {
    const std::vector<double> wide(from.begin(), from.end());
    return CopyToDevice(exec, wide.data(), to);
  }
  std::vector<uint16_t> narrow(from.size());
  for (size_t i = 0; i < from.size(); ++i) narrow[i] = ToBf16(from[i]);
  return CopyToDevice(exec, narrow.data(), to);
}

}  // namespace cadre
