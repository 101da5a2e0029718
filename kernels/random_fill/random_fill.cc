#include "kernels/random_fill/random_fill.h"

#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

CADRE_CUDA_IMPL absl::Status RandomFillCuda(const Exec& exec,
                                            const RandomFillArgs& args);

namespace {

// splitmix64's finaliser.
uint64_t Hash(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

template <typename T>
void Fill(const RandomFillArgs& args) {
  T* const x = args.x.data<T>();
  const int64_t n = args.x.num_elements();
  for (int64_t i = 0; i < n; i += 2) {
    const uint64_t h = Hash(args.seed, static_cast<uint64_t>(i / 2));
    // In (0, 1] and [0, 1).
    const float u = static_cast<float>((h >> 40) + 1) * 0x1p-24f;
    const float v = static_cast<float>((h >> 8) & 0xFFFFFF) * 0x1p-24f;
    const float radius =
        static_cast<float>(args.deviation) * std::sqrt(-2 * std::log(u));
    const float angle = 6.2831853071795864f * v;
    x[i] = radius * std::cos(angle);
    if (i + 1 < n) x[i + 1] = radius * std::sin(angle);
  }
}

}  // namespace

absl::Status RandomFill(const Exec& exec, const RandomFillArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, "random_fill", "x", args.x, 0));
  if (exec.backend == Backend::kCuda) {
    return RandomFillCuda ? RandomFillCuda(exec, args)
                          : NoCudaError("random_fill");
  }
  return DispatchCpu(args.x.dtype(), [&](auto zero) {
    Fill<decltype(zero)>(args);
    return absl::OkStatus();
  });
}

}  // namespace cadre
