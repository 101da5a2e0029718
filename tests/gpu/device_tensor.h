#ifndef CADRE_TESTS_GPU_DEVICE_TENSOR_H_
#define CADRE_TESTS_GPU_DEVICE_TENSOR_H_

// Random tensors on a GPU and the same values on the host, for tests and
// benchmarks that run where there is one.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/device/buffer.h"
#include "worker/device/transfer.h"

namespace cadre::testing {

// `host` holds what `view` holds: after rounding to its dtype.
struct DeviceTensor {
  Buffer buffer;
  Tensor view;
  std::vector<float> host;
};

template <typename T>
T Must(absl::StatusOr<T> value) {
  CADRE_CHECK(value.ok()) << std::string(value.status().message());
  return *std::move(value);
}
inline void Must(const absl::Status& status) {
  CADRE_CHECK(status.ok()) << std::string(status.message());
}

inline DeviceTensor Upload(const Exec& exec, DType dtype,
                           std::vector<int64_t> dims,
                           const std::vector<float>& values) {
  DeviceTensor t;
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  t.buffer = Must(Buffer::Create(exec, n * SizeOf(dtype), "test"));
  t.view = t.buffer.View(dtype, dims);
  Must(WriteFloats(exec, values, t.view));
  t.host = Must(ReadFloats(exec, t.view));
  return t;
}

inline DeviceTensor Random(const Exec& exec, DType dtype,
                           std::vector<int64_t> dims, uint64_t seed) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(bits);
  return Upload(exec, dtype, std::move(dims), values);
}

inline DeviceTensor Table(const Exec& exec, const std::vector<int32_t>& v) {
  DeviceTensor t;
  const auto n = static_cast<int64_t>(v.size());
  t.buffer = Must(Buffer::Create(exec, n * 4, "test"));
  t.view = t.buffer.View(DType::kI32, {n});
  Must(CopyToDevice(exec, v.data(), t.view));
  return t;
}

// |a - b| / |b|; NaN when one is there.
inline double Relative(const std::vector<float>& a,
                       const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-300));
}

}  // namespace cadre::testing

#endif  // CADRE_TESTS_GPU_DEVICE_TENSOR_H_
