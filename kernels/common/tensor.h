#ifndef CADRE_KERNELS_COMMON_TENSOR_H_
#define CADRE_KERNELS_COMMON_TENSOR_H_

// A non-owning, contiguous, row-major view of device or host memory. Copying a
// Tensor copies the view. The owner (worker/device Buffer or Arena) must
// outlive it. A default-constructed Tensor is "absent": ops take absence as
// "this optional input or output is not wanted".

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/types/span.h"
#include "base/logging.h"
#include "kernels/common/dtype.h"

namespace cadre {

class Tensor {
 public:
  static constexpr int kMaxRank = 4;

  Tensor() = default;
  Tensor(void* data, DType dtype, absl::Span<const int64_t> dims)
      : data_(data), dtype_(dtype), rank_(static_cast<int>(dims.size())) {
    CADRE_CHECK(rank_ <= kMaxRank) << rank_;
    for (int i = 0; i < rank_; ++i) dims_[i] = dims[i];
    present_ = true;
  }
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> dims)
      : Tensor(data, dtype, absl::MakeConstSpan(dims.begin(), dims.size())) {}

  // False for an absent tensor. (A present tensor may have 0 elements and a
  // null pointer.)
  bool present() const { return present_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return dims_[i]; }
  absl::Span<const int64_t> dims() const {
    return {dims_.data(), size_t(rank_)};
  }
  int64_t num_elements() const {
    int64_t n = present_ ? 1 : 0;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  int64_t num_bytes() const { return num_elements() * SizeOf(dtype_); }

  void* raw() const { return data_; }
  // T must match dtype() (CADRE_CHECK).
  template <typename T>
  T* data() const {
    CADRE_CHECK(!present_ || dtype_ == DTypeOf<T>::value)
        << "tensor holds " << DTypeName(dtype_);
    return static_cast<T*>(data_);
  }
  template <typename T>
  absl::Span<T> span() const {
    return {data<T>(), size_t(num_elements())};
  }

  // The same elements under another shape of equal size.
  Tensor Reshape(std::initializer_list<int64_t> dims) const {
    Tensor out(data_, dtype_, dims);
    CADRE_CHECK(out.num_elements() == num_elements());
    return out;
  }
  // Rows [begin, end) of the first dimension.
  Tensor Rows(int64_t begin, int64_t end) const {
    CADRE_CHECK(rank_ >= 1 && 0 <= begin && begin <= end && end <= dims_[0]);
    Tensor out = *this;
    int64_t row = SizeOf(dtype_);
    for (int i = 1; i < rank_; ++i) row *= dims_[i];
    // A null pointer stays one: it says that there was no memory.
    if (data_ != nullptr) out.data_ = static_cast<char*>(data_) + begin * row;
    out.dims_[0] = end - begin;
    return out;
  }
  // "f32[300,48]"
  std::string DebugString() const {
    if (!present_) return "absent";
    std::string out = std::string(DTypeName(dtype_)) + "[";
    for (int i = 0; i < rank_; ++i) {
      if (i > 0) out += ",";
      out += std::to_string(dims_[i]);
    }
    return out + "]";
  }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int rank_ = 0;
  bool present_ = false;
  std::array<int64_t, kMaxRank> dims_{};
};

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_TENSOR_H_
