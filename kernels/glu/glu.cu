#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/glu/glu.h"

namespace cadre {
namespace {

constexpr char kOp[] = "glu";
constexpr int kBlock = 256;
using Kind = GluActivation::Kind;

struct Activation {
  float limit, beta, linear_beta;
};

template <Kind kKind>
__device__ __forceinline__ float Forward(const Activation& a, float g,
                                         float u) {
  if constexpr (kKind == Kind::kSiTu) {
    return a.beta * tanhf(g / a.beta) * device::Sigmoid(g) *
           (a.linear_beta * tanhf(u / a.linear_beta));
  }
  if constexpr (kKind == Kind::kClampedSwiGlu) {
    g = fminf(g, a.limit);
    u = fminf(fmaxf(u, -a.limit), a.limit);
  }
  return device::Silu(g) * u;
}

// Replaces g and u by their gradients.
template <Kind kKind>
__device__ __forceinline__ void Backward(const Activation& a, float dh,
                                         float& g, float& u) {
  const float gate = g, up = u;
  if constexpr (kKind == Kind::kSiTu) {
    const float tg = tanhf(gate / a.beta), tu = tanhf(up / a.linear_beta);
    const float s = device::Sigmoid(gate);
    g = dh * (a.linear_beta * tu) *
        ((1 - tg * tg) * s + a.beta * tg * s * (1 - s));
    u = dh * (a.beta * tg * s) * (1 - tu * tu);
    return;
  }
  float bg = gate, bu = up;
  bool gate_inside = true, up_inside = true;
  if constexpr (kKind == Kind::kClampedSwiGlu) {
    gate_inside = !(gate > a.limit);
    up_inside = !(up > a.limit || up < -a.limit);
    bg = fminf(gate, a.limit);
    bu = fminf(fmaxf(up, -a.limit), a.limit);
  }
  const float s = device::Sigmoid(bg);
  g = gate_inside ? dh * bu * (s * (1 + bg * (1 - s))) : 0;
  u = up_inside ? dh * (bg * s) : 0;
}

// `width` counts packs of N elements; pitches are in elements.
template <typename T, int N, Kind kKind>
__global__ void ForwardKernel(Activation a, const T* gate, const T* up,
                              int64_t in_pitch, int64_t rows, int64_t width,
                              T* h) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x; i < rows * width;
       i += stride) {
    const int64_t row = i / width;
    const int64_t at = row * in_pitch + (i - row * width) * N;
    float g[N], u[N];
    LoadVec<N>(gate + at, g);
    LoadVec<N>(up + at, u);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = Forward<kKind>(a, g[j], u[j]);
    StoreVec<N>(h + i * N, g);
  }
}

template <typename T, int N, Kind kKind>
__global__ void BackwardKernel(Activation a, const T* gate, const T* up,
                               int64_t pitch, const T* dh, int64_t rows,
                               int64_t width, T* dgate, T* dup,
                               int64_t out_pitch) {
  const int64_t stride = int64_t(gridDim.x) * kBlock;
  for (int64_t i = int64_t(blockIdx.x) * kBlock + threadIdx.x; i < rows * width;
       i += stride) {
    const int64_t row = i / width, column = (i - row * width) * N;
    float g[N], u[N], d[N];
    LoadVec<N>(gate + row * pitch + column, g);
    LoadVec<N>(up + row * pitch + column, u);
    LoadVec<N>(dh + i * N, d);
#pragma unroll
    for (int j = 0; j < N; ++j) Backward<kKind>(a, d[j], g[j], u[j]);
    StoreVec<N>(dgate + row * out_pitch + column, g);
    StoreVec<N>(dup + row * out_pitch + column, u);
  }
}

// Where the halves of a row are, in either form.
template <typename T>
struct Halves {
  T* gate;
  T* up;
  int64_t pitch;
  Halves(const Tensor& gate_tensor, const Tensor& up_tensor, const Tensor& both,
         int64_t width)
      : gate(both.present() ? both.data<T>() : gate_tensor.data<T>()),
        up(both.present() ? both.data<T>() + width : up_tensor.data<T>()),
        pitch(both.present() ? 2 * width : width) {}
};

// Calls fn(zero of T, elements of one access, kind), the latter two constants.
template <typename Fn>
absl::Status Dispatch(DType dtype, int64_t width, bool aligned, Kind kind,
                      Fn&& fn) {
  return DispatchCuda(dtype, [&](auto zero) {
    using T = decltype(zero);
    auto with_kind = [&](auto n) {
      switch (kind) {
        case Kind::kClampedSwiGlu:
          return fn(zero, n,
                    std::integral_constant<Kind, Kind::kClampedSwiGlu>{});
        case Kind::kSiTu:
          return fn(zero, n, std::integral_constant<Kind, Kind::kSiTu>{});
        default:
          return fn(zero, n, std::integral_constant<Kind, Kind::kSwiGlu>{});
      }
    };
    return aligned && width % kVec<T> == 0
               ? with_kind(std::integral_constant<int, kVec<T>>{})
               : with_kind(std::integral_constant<int, 1>{});
  });
}

Activation Parameters(const GluActivation& a) {
  return {static_cast<float>(a.limit), static_cast<float>(a.beta),
          static_cast<float>(a.linear_beta)};
}

}  // namespace

absl::Status GluForwardCuda(const Exec& exec, const GluForwardArgs& args) {
  const int64_t rows = args.h.dim(0), width = args.h.dim(1);
  return Dispatch(
      args.h.dtype(), width,
      Aligned16(args.gate.raw(), args.up.raw(), args.gate_up.raw(),
                args.h.raw()),
      args.activation.kind, [&](auto zero, auto n, auto kind) {
        using T = decltype(zero);
        const Halves<T> in(args.gate, args.up, args.gate_up, width);
        const int64_t packs = width / n();
        return Launch(
            kOp, exec, {.grid = GridFor(rows * packs, kBlock), .block = kBlock},
            ForwardKernel<T, n(), kind()>, Parameters(args.activation), in.gate,
            in.up, in.pitch, rows, packs, args.h.data<T>());
      });
}

absl::Status GluBackwardCuda(const Exec& exec, const GluBackwardArgs& args) {
  const int64_t rows = args.dh.dim(0), width = args.dh.dim(1);
  return Dispatch(
      args.dh.dtype(), width,
      Aligned16(args.gate.raw(), args.up.raw(), args.gate_up.raw(),
                args.dh.raw(), args.dgate.raw(), args.dup.raw(),
                args.dgate_up.raw()),
      args.activation.kind, [&](auto zero, auto n, auto kind) {
        using T = decltype(zero);
        const Halves<T> in(args.gate, args.up, args.gate_up, width);
        const Halves<T> out(args.dgate, args.dup, args.dgate_up, width);
        const int64_t packs = width / n();
        return Launch(
            kOp, exec, {.grid = GridFor(rows * packs, kBlock), .block = kBlock},
            BackwardKernel<T, n(), kind()>, Parameters(args.activation),
            in.gate, in.up, in.pitch, args.dh.data<T>(), rows, packs, out.gate,
            out.up, out.pitch);
      });
}

}  // namespace cadre
