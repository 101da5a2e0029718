#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/quantized.h"
#include "model/safetensors.h"

namespace cadre {
namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float DecodeF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const int exponent = half >> 10 & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -value : value;
  }
  if (exponent == 31) return FromBits(sign | 0x7f800000u | mantissa << 13);
  return FromBits(sign | static_cast<uint32_t>(exponent + 112) << 23 |
                  mantissa << 13);
}

// Round to nearest even; NaN stays a (quiet) NaN.
uint16_t EncodeBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Source and target may be unaligned: files put tensors at any offset.
template <typename Source, typename Target, typename Decode>
void Convert(const void* source, int64_t n, void* target, Decode decode) {
  const char* in = static_cast<const char*>(source);
  char* out = static_cast<char*>(target);
  for (int64_t i = 0; i < n; ++i) {
    Source value;
    std::memcpy(&value, in + i * sizeof(Source), sizeof(Source));
    const Target converted = static_cast<Target>(decode(value));
    std::memcpy(out + i * sizeof(Target), &converted, sizeof(Target));
  }
}

template <typename Target>
bool ConvertTo(DType from, const void* source, int64_t n, void* target) {
  const auto same = [](auto value) { return value; };
  switch (from) {
    case DType::kF32:
      Convert<float, Target>(source, n, target, same);
      return true;
    case DType::kF64:
      Convert<double, Target>(source, n, target, same);
      return true;
    case DType::kBF16:
      Convert<uint16_t, Target>(source, n, target, [](uint16_t value) {
        return FromBits(static_cast<uint32_t>(value) << 16);
      });
      return true;
    case DType::kF16:
      Convert<uint16_t, Target>(source, n, target, DecodeF16);
      return true;
    case DType::kF8E4M3:
      Convert<uint8_t, Target>(source, n, target, DecodeF8E4M3);
      return true;
    case DType::kU8:
    case DType::kBool:
      Convert<uint8_t, Target>(source, n, target, same);
      return true;
    case DType::kI32:
      Convert<int32_t, Target>(source, n, target, same);
      return true;
    case DType::kI64:
      Convert<int64_t, Target>(source, n, target, same);
      return true;
  }
  return false;
}

}  // namespace

absl::Status ConvertElements(DType from, const void* source, int64_t n,
                             DType to, void* target) {
  if (from == to) {
    if (n > 0) std::memcpy(target, source, static_cast<size_t>(n * SizeOf(to)));
    return absl::OkStatus();
  }
  if (to == DType::kF32 && ConvertTo<float>(from, source, n, target)) {
    return absl::OkStatus();
  }
  if (to == DType::kF64 && ConvertTo<double>(from, source, n, target)) {
    return absl::OkStatus();
  }
  if (from == DType::kF32 && to == DType::kBF16) {
    Convert<float, uint16_t>(source, n, target, EncodeBF16);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no conversion from ", DTypeName(from), " to ",
                   DTypeName(to), "; elements are read as f32 or f64"));
}

}  // namespace cadre
