#ifndef CADRE_KERNELS_COMMON_DTYPE_H_
#define CADRE_KERNELS_COMMON_DTYPE_H_

// Element types of tensors. The CPU backend computes in kF32 (production) and
// kF64 (finite-difference tests); the CUDA backend adds kBF16.

#include <cstdint>

namespace cadre {

enum class DType { kF32, kF64, kBF16, kF16, kF8E4M3, kU8, kI32, kI64, kBool };

constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    default:
      return 1;
  }
}

// Name as in job files and messages: "f32", "bf16", ...
constexpr const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF8E4M3:
      return "f8_e4m3";
    case DType::kU8:
      return "u8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kBool:
      return "bool";
  }
  return "?";
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_DTYPE_H_
