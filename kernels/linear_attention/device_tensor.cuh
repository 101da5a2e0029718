#ifndef CADRE_KERNELS_LINEAR_ATTENTION_DEVICE_TENSOR_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_DEVICE_TENSOR_CUH_

// An owning tensor in device memory for the tests and benches of kernels/{kda,
// gdn}. Aborts on any CUDA error. Not thread-safe.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "kernels/common/tensor.h"
#include "kernels/common/test_tensor.h"

namespace cadre::testing {

inline void CheckCuda(cudaError_t error) {
  CADRE_CHECK(error == cudaSuccess) << cudaGetErrorString(error);
}

// Empty where a device can be used, else why not.
inline std::string WhyNoDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (count == 0) return "no CUDA device";
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0));
  if (properties.major != 9)
    return std::string(properties.name) + " is no Hopper";
  return "";
}

inline uint16_t RoundToBf16(double value) {
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline double FromBf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

class DeviceTensor {
 public:
  DeviceTensor() = default;
  // Filled with bytes of 0xff: NaNs that show what was not written.
  DeviceTensor(DType dtype, std::vector<int64_t> dims)
      : dtype_(dtype), dims_(std::move(dims)) {
    size_ = 1;
    for (int64_t dim : dims_) size_ *= dim;
    CheckCuda(cudaMalloc(&data_, size_ * SizeOf(dtype_) + 256));
    Poison();
  }
  DeviceTensor(DeviceTensor&& other) noexcept { *this = std::move(other); }
  DeviceTensor& operator=(DeviceTensor&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(dtype_, other.dtype_);
    std::swap(dims_, other.dims_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceTensor() { cudaFree(data_); }

  void Poison() {
    CheckCuda(cudaMemset(data_, 0xff, size_ * SizeOf(dtype_) + 256));
  }
  void Zero() { CheckCuda(cudaMemset(data_, 0, size_ * SizeOf(dtype_))); }

  // `host`, rounded to `dtype`; `host` itself is rounded alike, so that a
  // reference sees what the device sees.
  static DeviceTensor Of(DType dtype, std::vector<int64_t> dims,
                         TestTensor& host) {
    DeviceTensor out(dtype, std::move(dims));
    CADRE_CHECK(out.size_ == host.size());
    std::vector<unsigned char> bytes(out.size_ * SizeOf(dtype));
    for (int64_t i = 0; i < out.size_; ++i) {
      if (dtype == DType::kBF16) {
        const uint16_t x = RoundToBf16(host.Get(i));
        std::memcpy(&bytes[2 * i], &x, 2);
        host.Set(i, FromBf16(x));
      } else if (dtype == DType::kF32) {
        const float x = static_cast<float>(host.Get(i));
        std::memcpy(&bytes[4 * i], &x, 4);
        host.Set(i, x);
      } else {
        CADRE_CHECK(dtype == DType::kI32);
        const int32_t x = static_cast<int32_t>(host.Get(i));
        std::memcpy(&bytes[4 * i], &x, 4);
      }
    }
    CheckCuda(cudaMemcpy(out.data_, bytes.data(), bytes.size(),
                         cudaMemcpyHostToDevice));
    return out;
  }

  Tensor view() const { return Tensor(data_, dtype_, dims_); }
  void* raw() const { return data_; }
  int64_t size() const { return size_; }

  std::vector<unsigned char> Bytes() const {
    std::vector<unsigned char> bytes(size_ * SizeOf(dtype_));
    CheckCuda(
        cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }
  // As f64.
  TestTensor ToHost() const {
    const std::vector<unsigned char> bytes = Bytes();
    TestTensor out = TestTensor::Zeros(DType::kF64, dims_);
    for (int64_t i = 0; i < size_; ++i) {
      if (dtype_ == DType::kBF16) {
        uint16_t x;
        std::memcpy(&x, &bytes[2 * i], 2);
        out.Set(i, FromBf16(x));
      } else {
        CADRE_CHECK(dtype_ == DType::kF32);
        float x;
        std::memcpy(&x, &bytes[4 * i], 4);
        out.Set(i, x);
      }
    }
    return out;
  }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  std::vector<int64_t> dims_;
  int64_t size_ = 0;
};

}  // namespace cadre::testing

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_DEVICE_TENSOR_CUH_
