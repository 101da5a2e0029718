#ifndef CADRE_KERNELS_COMMON_SCALAR_MATH_H_
#define CADRE_KERNELS_COMMON_SCALAR_MATH_H_

// Activations of CPU ops for one scalar (float or double), with derivatives.
// Nothing here overflows: exp is only taken of negative numbers, or of small
// ones. Pure functions.

#include <cmath>

namespace cadre {

template <typename S>
S Sigmoid(S x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const S e = std::exp(x);
  return e / (1 + e);
}

template <typename S>
S Silu(S x) {
  return x * Sigmoid(x);
}

template <typename S>
S SiluGrad(S x) {
  const S s = Sigmoid(x);
  return s * (1 + x * (1 - s));
}

// log(1 + e^x), the identity above 20 (as PyTorch defines it).
template <typename S>
S Softplus(S x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

template <typename S>
S SoftplusGrad(S x) {
  return x > 20 ? S(1) : Sigmoid(x);
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_SCALAR_MATH_H_
