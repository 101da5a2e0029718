#include <algorithm>
#include <cmath>

#include "kernels/common/check.h"
#include "kernels/glu/glu.h"

namespace cadre {
namespace {

using Kind = GluActivation::Kind;

// 1 / (1 + e^-x) without overflow at either end.
template <typename T>
T Sigmoid(T x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const T e = std::exp(x);
  return e / (1 + e);
}

template <typename T>
T Forward(const GluActivation& activation, T g, T u) {
  switch (activation.kind) {
    case Kind::kClampedSwiGlu: {
      const T limit = static_cast<T>(activation.limit);
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
      [[fallthrough]];
    }
    case Kind::kSwiGlu:
      return g * Sigmoid(g) * u;
    case Kind::kSiTu: {
      const T beta = static_cast<T>(activation.beta);
      const T linear_beta = static_cast<T>(activation.linear_beta);
      return beta * std::tanh(g / beta) * Sigmoid(g) *
             (linear_beta * std::tanh(u / linear_beta));
    }
  }
  return 0;
}

template <typename T>
struct Halves {
  T gate, up;
};

template <typename T>
Halves<T> Backward(const GluActivation& activation, T g, T u, T dh) {
  if (activation.kind == Kind::kSiTu) {
    const T beta = static_cast<T>(activation.beta);
    const T linear_beta = static_cast<T>(activation.linear_beta);
    const T a = std::tanh(g / beta);
    const T b = std::tanh(u / linear_beta);
    const T s = Sigmoid(g);
    return {dh * (linear_beta * b) * ((1 - a * a) * s + beta * a * s * (1 - s)),
            dh * (beta * a * s) * (1 - b * b)};
  }
  bool gate_inside = true, up_inside = true;
  if (activation.kind == Kind::kClampedSwiGlu) {
    const T limit = static_cast<T>(activation.limit);
    gate_inside = !(g > limit);
    up_inside = !(u > limit || u < -limit);
    g = std::min(g, limit);
    u = std::clamp(u, -limit, limit);
  }
  const T s = Sigmoid(g);
  return {gate_inside ? dh * u * (s * (1 + g * (1 - s))) : T{0},
          up_inside ? dh * (g * s) : T{0}};
}

// Where the halves of a row are, in either form.
template <typename T>
struct HalvesView {
  T* gate;
  T* up;
  int64_t pitch;

  HalvesView(const Tensor& gate_TF, const Tensor& up_TF, const Tensor& both,
             int64_t width)
      : gate(both.present() ? both.data<T>() : gate_TF.data<T>()),
        up(both.present() ? both.data<T>() + width : up_TF.data<T>()),
        pitch(both.present() ? 2 * width : width) {}
};

int64_t RowGrain(int64_t width) {
  return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, width));
}

}  // namespace

absl::Status GluForwardCpu(const Exec& exec, const GluForwardArgs& args) {
  return DispatchCpu(args.h.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.h.dim(1);
    const HalvesView<T> in(args.gate, args.up, args.gate_up, width);
    T* const h = args.h.data<T>();
    ParallelFor(exec, args.h.dim(0), RowGrain(width),
                [&](int64_t begin, int64_t end) {
                  for (int64_t r = begin; r < end; ++r) {
                    const T* const g = in.gate + r * in.pitch;
                    const T* const u = in.up + r * in.pitch;
                    for (int64_t f = 0; f < width; ++f)
                      h[r * width + f] = Forward(args.activation, g[f], u[f]);
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status GluBackwardCpu(const Exec& exec, const GluBackwardArgs& args) {
  return DispatchCpu(args.dh.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.dh.dim(1);
    const HalvesView<T> in(args.gate, args.up, args.gate_up, width);
    const HalvesView<T> out(args.dgate, args.dup, args.dgate_up, width);
    const T* const dh = args.dh.data<T>();
    ParallelFor(
        exec, args.dh.dim(0), RowGrain(width), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const int64_t at = r * in.pitch;
            for (int64_t f = 0; f < width; ++f) {
              const Halves<T> d = Backward(args.activation, in.gate[at + f],
                                           in.up[at + f], dh[r * width + f]);
              out.gate[at + f] = d.gate;
              out.up[at + f] = d.up;
            }
          }
        });
    return absl::OkStatus();
  });
}

}  // namespace cadre
