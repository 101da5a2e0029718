#ifndef CADRE_KERNELS_CUDA_TEST_TWIN_CUH_
#define CADRE_KERNELS_CUDA_TEST_TWIN_CUH_

// Runs an op on the device and its CPU version in float64 on equal inputs, and
// compares. Test-only; not thread-safe.
//
//   Twins twins(GetParam());                   // dtype of activations
//   Twin& x = twins.Act({5, 8});               // random, on both sides
//   Twin& y = twins.ActOut({5, 8});            // zeros; NaN on the device
//   twins.Check(
//       [&](const Exec& exec, View view) {
//         return L2NormForward(exec, {.x = view(x), .y = view(y)});
//       },
//       {&y}, {.f32 = 1e-5, .bf16 = 4e-3});

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/logging.h"
#include "kernels/common/exec.h"
#include "kernels/common/test_tensor.h"

namespace cadre::testing {

inline void CudaOk(cudaError_t error) {
  CADRE_CHECK(error == cudaSuccess) << cudaGetErrorString(error);
}

// Empty where a device can be used, else why not.
inline std::string WhyNoDevice() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

inline uint16_t ToBf16(double value) {
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

// One tensor on both sides.
class Twin {
 public:
  // The device starts from the host's values rounded to `dtype`, and the host
  // is rounded alike; or from NaN (poison).
  Twin(DType dtype, TestTensor host, std::vector<int64_t> dims, bool poison)
      : dtype_(dtype), dims_(std::move(dims)), host_(std::move(host)) {
    initial_.resize(host_.size() * SizeOf(dtype_), 0xff);
    for (int64_t i = 0; i < host_.size(); ++i) {
      if (!poison) Put(i, host_.Get(i));
    }
    for (int64_t i = 0; i < host_.size() && !poison; ++i)
      host_.Set(i, At(initial_, i));
    CudaOk(cudaMalloc(&data_, initial_.size() + 256));
    Reset();
  }
  ~Twin() { cudaFree(data_); }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  void Reset() {
    CudaOk(cudaMemcpy(data_, initial_.data(), initial_.size(),
                      cudaMemcpyHostToDevice));
  }
  std::vector<unsigned char> Bytes() const {
    std::vector<unsigned char> bytes(initial_.size());
    CudaOk(
        cudaMemcpy(bytes.data(), data_, bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
  }
  double At(const std::vector<unsigned char>& bytes, int64_t i) const {
    const unsigned char* p = bytes.data() + i * SizeOf(dtype_);
    switch (dtype_) {
      case DType::kBF16: {
        uint16_t v;
        std::memcpy(&v, p, 2);
        return FromBf16(v);
      }
      case DType::kF32:
        return Read<float>(p);
      case DType::kF64:
        return Read<double>(p);
      case DType::kI64:
        return static_cast<double>(Read<int64_t>(p));
      default:
        return Read<int32_t>(p);
    }
  }
  Tensor device() const { return Tensor(data_, dtype_, dims_); }
  Tensor host() { return host_.view(); }
  TestTensor& values() { return host_; }
  DType dtype() const { return dtype_; }

 private:
  template <typename T>
  static T Read(const unsigned char* p) {
    T v;
    std::memcpy(&v, p, sizeof(T));
    return v;
  }
  template <typename T>
  void Write(int64_t i, T v) {
    std::memcpy(initial_.data() + i * sizeof(T), &v, sizeof(T));
  }
  void Put(int64_t i, double v) {
    switch (dtype_) {
      case DType::kBF16:
        return Write<uint16_t>(i, ToBf16(v));
      case DType::kF32:
        return Write<float>(i, static_cast<float>(v));
      case DType::kF64:
        return Write<double>(i, v);
      case DType::kI64:
        return Write<int64_t>(i, static_cast<int64_t>(v));
      default:
        return Write<int32_t>(i, static_cast<int32_t>(v));
    }
  }

  const DType dtype_;
  const std::vector<int64_t> dims_;
  TestTensor host_;
  std::vector<unsigned char> initial_;
  void* data_ = nullptr;
};

using View = std::function<Tensor(Twin&)>;

struct Bounds {
  double f32 = 2e-5;
  double bf16 = 5e-3;
};

class Twins {
 public:
  explicit Twins(DType activation) : activation_(activation) {}

  Twin& Act(std::vector<int64_t> dims, double stddev = 1, double mean = 0) {
    return Random(activation_, std::move(dims), stddev, mean);
  }
  Twin& Param(std::vector<int64_t> dims, double stddev = 1, double mean = 0) {
    return Random(DType::kF32, std::move(dims), stddev, mean);
  }
  Twin& ActOut(std::vector<int64_t> dims) {
    return Out(activation_, std::move(dims));
  }
  Twin& ParamOut(std::vector<int64_t> dims) {
    return Out(DType::kF32, std::move(dims));
  }
  // Zeros to be added to.
  Twin& Zeros(DType dtype, std::vector<int64_t> dims) {
    return Add(dtype, TestTensor::Zeros(HostType(dtype), dims), dims, false);
  }
  Twin& Out(DType dtype, std::vector<int64_t> dims) {
    return Add(dtype, TestTensor::Zeros(HostType(dtype), dims), dims, true);
  }
  Twin& Table(const std::vector<int32_t>& values,
              std::vector<int64_t> dims = {}) {
    if (dims.empty()) dims = {static_cast<int64_t>(values.size())};
    return Add(
        DType::kI32,
        TestTensor::Of(DType::kI32, dims, {values.begin(), values.end()}), dims,
        false);
  }

  // Runs `op` on both sides and compares `outputs`; then once more on the
  // device from the same start: the same bits must come.
  void Check(const std::function<absl::Status(const Exec&, const View&)>& op,
             const std::vector<Twin*>& outputs, Bounds bounds = {}) {
    ASSERT_TRUE(Succeeds(op({}, [](Twin& t) { return t.host(); })));
    const std::vector<std::vector<unsigned char>> first =
        RunDevice(op, outputs);
    for (size_t n = 0; n < outputs.size(); ++n) {
      const Twin& out = *outputs[n];
      const double bound =
          out.dtype() == DType::kI32 || out.dtype() == DType::kI64 ? 0
          : activation_ == DType::kBF16                            ? bounds.bf16
                                                                   : bounds.f32;
      Compare(*outputs[n], first[n], bound, n);
    }
    for (Twin* out : outputs) out->Reset();
    EXPECT_TRUE(RunDevice(op, outputs) == first) << "differs between runs";
  }

 private:
  static bool Succeeds(const absl::Status& status) {
    if (!status.ok()) ADD_FAILURE() << status.ToString();
    return status.ok();
  }
  static DType HostType(DType dtype) {
    return dtype == DType::kI32 || dtype == DType::kI64 ? dtype : DType::kF64;
  }
  std::vector<std::vector<unsigned char>> RunDevice(
      const std::function<absl::Status(const Exec&, const View&)>& op,
      const std::vector<Twin*>& outputs) {
    EXPECT_TRUE(Succeeds(
        op({.backend = Backend::kCuda}, [](Twin& t) { return t.device(); })));
    CudaOk(cudaDeviceSynchronize());
    std::vector<std::vector<unsigned char>> bytes;
    for (Twin* out : outputs) bytes.push_back(out->Bytes());
    return bytes;
  }
  static void Compare(Twin& out, const std::vector<unsigned char>& bytes,
                      double bound, size_t n) {
    double difference = 0, norm = 0;
    const TestTensor& want = out.values();
    for (int64_t i = 0; i < want.size(); ++i) {
      const double x = want.Get(i), y = out.At(bytes, i);
      if (std::isinf(x) && x == y) continue;
      if (!std::isfinite(y) || (bound == 0 && x != y)) {
        ADD_FAILURE() << "output " << n << ", element " << i << ": " << y
                      << " instead of " << x;
        return;
      }
      difference += (x - y) * (x - y);
      norm += x * x;
    }
    const double error = std::sqrt(norm > 0 ? difference / norm : difference);
    EXPECT_LE(error, bound) << "output " << n;
  }
  Twin& Random(DType dtype, std::vector<int64_t> dims, double stddev,
               double mean) {
    return Add(dtype,
               TestTensor::Random(DType::kF64, dims, ++seed_, stddev, mean),
               dims, false);
  }
  Twin& Add(DType dtype, TestTensor host, std::vector<int64_t> dims,
            bool poison) {
    return twins_.emplace_back(dtype, std::move(host), std::move(dims), poison);
  }

  const DType activation_;
  uint64_t seed_ = 0;
  std::deque<Twin> twins_;
};

// A test for each activation dtype; skipped with a reason without a device.
class DeviceTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

#define CADRE_FOR_EACH_ACTIVATION(suite)                           \
  INSTANTIATE_TEST_SUITE_P(                                        \
      Dtypes, suite, ::testing::Values(DType::kF32, DType::kBF16), \
      [](const auto& info) { return std::string(DTypeName(info.param)); })

}  // namespace cadre::testing

#endif  // CADRE_KERNELS_CUDA_TEST_TWIN_CUH_
