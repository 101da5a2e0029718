#ifndef CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_DEVICE_CUH_
#define CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_DEVICE_CUH_

// Private to the CUDA side of hyper-connections.

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"

namespace cadre::hyper_connection_device {

inline constexpr char kOp[] = "hyper_connection";

// Calls fn(std::integral_constant<int, m>{}); the shared entry has narrowed m
// to 1 to 8.
template <int kM = 1, typename Fn>
absl::Status WithStreams(int64_t m, const Fn& fn) {
  if constexpr (kM < 8) {
    if (m != kM) return WithStreams<kM + 1>(m, fn);
  }
  return fn(std::integral_constant<int, kM>{});
}

}  // namespace cadre::hyper_connection_device

#endif  // CADRE_KERNELS_HYPER_CONNECTION_HYPER_CONNECTION_DEVICE_CUH_
