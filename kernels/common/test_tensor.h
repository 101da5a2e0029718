#ifndef CADRE_KERNELS_COMMON_TEST_TENSOR_H_
#define CADRE_KERNELS_COMMON_TEST_TENSOR_H_

// An owning host tensor for tests of ops. Converts to the Tensor view that ops
// take; the view lives as long as this object. Not thread-safe.
//
//   TestTensor x = TestTensor::Random(DType::kF64, {5, 8}, /*seed=*/1);
//   TestTensor y = TestTensor::Zeros(DType::kF64, {5, 8});
//   ASSERT_OK(L2NormForward({}, {.x = x.view(), .y = y.view()}));

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/common/tensor.h"

namespace cadre::testing {

class TestTensor {
 public:
  static TestTensor Zeros(DType dtype, std::vector<int64_t> dims) {
    return TestTensor(dtype, std::move(dims));
  }
  static TestTensor Full(DType dtype, std::vector<int64_t> dims, double value) {
    TestTensor out(dtype, std::move(dims));
    for (int64_t i = 0; i < out.size(); ++i) out.Set(i, value);
    return out;
  }
  // Independent normal values.
  static TestTensor Random(DType dtype, std::vector<int64_t> dims,
                           uint64_t seed, double stddev = 1.0,
                           double mean = 0.0) {
    TestTensor out(dtype, std::move(dims));
    std::mt19937_64 bits(seed);
    std::normal_distribution<double> normal(mean, stddev);
    for (int64_t i = 0; i < out.size(); ++i) out.Set(i, normal(bits));
    return out;
  }
  static TestTensor Of(DType dtype, std::vector<int64_t> dims,
                       const std::vector<double>& values) {
    TestTensor out(dtype, std::move(dims));
    CADRE_CHECK(static_cast<int64_t>(values.size()) == out.size());
    for (int64_t i = 0; i < out.size(); ++i) out.Set(i, values[i]);
    return out;
  }
  // A one-dimensional i32 table: cu_seqlens, group offsets.
  static TestTensor Table(const std::vector<int32_t>& values) {
    return Of(DType::kI32, {static_cast<int64_t>(values.size())},
              {values.begin(), values.end()});
  }

  // The same values in another dtype.
  TestTensor As(DType dtype) const {
    TestTensor out(dtype, dims_);
    for (int64_t i = 0; i < size(); ++i) out.Set(i, Get(i));
    return out;
  }

  Tensor view() { return Tensor(bytes_.data(), dtype_, dims_); }
  int64_t size() const {
    return static_cast<int64_t>(bytes_.size()) / SizeOf(dtype_);
  }

  double Get(int64_t i) const {
    switch (dtype_) {
      case DType::kF64:
        return reinterpret_cast<const double*>(bytes_.data())[i];
      case DType::kF32:
        return reinterpret_cast<const float*>(bytes_.data())[i];
      case DType::kI64:
        return static_cast<double>(
            reinterpret_cast<const int64_t*>(bytes_.data())[i]);
      default:
        CADRE_CHECK(dtype_ == DType::kI32);
        return reinterpret_cast<const int32_t*>(bytes_.data())[i];
    }
  }
  void Set(int64_t i, double value) {
    switch (dtype_) {
      case DType::kF64:
        reinterpret_cast<double*>(bytes_.data())[i] = value;
        return;
      case DType::kF32:
        reinterpret_cast<float*>(bytes_.data())[i] = static_cast<float>(value);
        return;
      case DType::kI64:
        reinterpret_cast<int64_t*>(bytes_.data())[i] =
            static_cast<int64_t>(value);
        return;
      default:
        CADRE_CHECK(dtype_ == DType::kI32);
        reinterpret_cast<int32_t*>(bytes_.data())[i] =
            static_cast<int32_t>(value);
    }
  }

  bool AllFinite() const {
    for (int64_t i = 0; i < size(); ++i) {
      if (!std::isfinite(Get(i))) return false;
    }
    return true;
  }

 private:
  TestTensor(DType dtype, std::vector<int64_t> dims)
      : dtype_(dtype), dims_(std::move(dims)) {
    int64_t n = 1;
    for (int64_t dim : dims_) n *= dim;
    bytes_.resize(n * SizeOf(dtype_));
  }

  DType dtype_;
  std::vector<int64_t> dims_;
  // From operator new, so aligned for every dtype here.
  std::vector<unsigned char> bytes_;
};

// Sum of products of all elements.
inline double Dot(const TestTensor& a, const TestTensor& b) {
  CADRE_CHECK(a.size() == b.size());
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.Get(i) * b.Get(i);
  return sum;
}

// |a - b| / |b| in the Euclidean norm; the absolute difference where b is 0.
inline double RelativeError(const TestTensor& a, const TestTensor& b) {
  CADRE_CHECK(a.size() == b.size());
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    difference += (a.Get(i) - b.Get(i)) * (a.Get(i) - b.Get(i));
    norm += b.Get(i) * b.Get(i);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace cadre::testing

#endif  // CADRE_KERNELS_COMMON_TEST_TENSOR_H_
