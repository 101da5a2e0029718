#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/short_conv/conv_front.h"
#include "kernels/short_conv/conv_walk.cuh"

namespace cadre {
namespace {

constexpr char kOp[] = "conv_front";
constexpr int kTokens = 32;  // a thread walks this many
constexpr int kBlock = 128;  // threads, side by side over channels
constexpr int kN = 4;        // channels a thread: heads lie within a warp
constexpr int kParts = 3, kMoves = 2;

template <typename T>
struct Part {
  const T* x;
  const float* w;
  const T* dy;  // backward
  T* out;       // y or dx
  int64_t channels;
  int64_t pitch;    // between rows of x and dx
  ColumnGroups at;  // channels there
  int lanes;        // of a head, 16 or 32; 0 without a norm
};
struct MovePart {
  float* wide;
  float* narrow;
  int64_t channels;
  int64_t pitch;    // between rows of wide
  ColumnGroups at;  // channels there
};
// The blocks of one z have a part, or behind the parts a move.
template <typename T>
struct Parts {
  Part<T> part[kParts];
  MovePart move[kMoves];
  unsigned num_parts;
};

// What a block of a move does with its tokens; blocks beside the first have
// nothing to do.
template <bool widen>
__device__ __forceinline__ void MoveRows(const MovePart& move, int64_t tokens) {
  if (blockIdx.y > 0) return;
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  const int64_t rows = min(tokens - first, int64_t{kTokens});
  for (int64_t i = threadIdx.x; i < rows * move.channels; i += kBlock) {
    const int64_t row = i / move.channels, c = i - row * move.channels;
    float& wide = move.wide[(first + row) * move.pitch + move.at.Column(c)];
    float& narrow = move.narrow[first * move.channels + i];
    if (widen) {
      wide = narrow;
    } else {
      narrow = wide;
    }
  }
}

// Sum over the `lanes` threads of a head, in each of them.
__device__ __forceinline__ float HeadSum(float x, int lanes) {
  if (lanes == 32) x += __shfl_xor_sync(0xffffffffu, x, 16);
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// What a thread knows of the tokens it walks along: the taps, the last W rows
// of x, and the row behind them on its way.
template <typename T, int W>
struct Window {
  float tap[W][kN], row[W][kN];
  Pack<T, kN> next;

  __device__ Window(const Part<T>& part, int64_t c, bool live) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        tap[j][n] = live ? part.w[(c + n) * W + j] : 0.0f;
        row[j][n] = 0;
      }
    }
  }
  __device__ void Clear() {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) row[j][n] = 0;
    }
  }
  // The rows in front of `first`, as far as they are of its document.
  __device__ void Fill(const Part<T>& part, const Walk& walk, int64_t first,
                       int64_t column) {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const int64_t source = first - W + 1 + j;
      if (!walk.padding() && source >= walk.start())
        LoadVec<kN>(part.x + source * part.pitch + column, row[j]);
    }
  }
  __device__ void Fetch(const Part<T>& part, int64_t t, int64_t column) {
    next =
        *reinterpret_cast<const Pack<T, kN>*>(part.x + t * part.pitch + column);
  }
  // Moves on to the fetched row; its convolution.
  __device__ void Step(float (&conv)[kN]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      row[W - 1][n] = ToFloat(next.v[n]);
      conv[n] = 0;
#pragma unroll
      for (int j = 0; j < W; ++j) conv[n] += tap[j][n] * row[j][n];
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) row[j][n] = row[j + 1][n];
    }
  }
};

// Whole warps walk together, for the sums over heads.
template <typename T, int W>
__global__ void __launch_bounds__(kBlock)
    ForwardKernel(__grid_constant__ const Parts<T> parts, const int32_t* cu,
                  int docs, int64_t tokens, float eps) {
  if (blockIdx.z >= parts.num_parts)
    return MoveRows<false>(parts.move[blockIdx.z - parts.num_parts], tokens);
  const Part<T>& part = parts.part[blockIdx.z];
  const int64_t c = (int64_t(blockIdx.y) * kBlock + threadIdx.x) * kN;
  if (c - threadIdx.x % 32 * kN >= part.channels) return;
  const bool live = c < part.channels;
  const int64_t column = part.at.Column(live ? c : 0);
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  const int64_t end = min(tokens, first + kTokens);
  Window<T, W> window(part, c, live);
  Walk walk(cu, docs, first);
  window.Fill(part, walk, first, column);
  const int64_t used = cu[docs];  // rows behind are not read
  if (first < used) window.Fetch(part, first, column);
  for (int64_t t = first; t < end; ++t) {
    const int before = walk.doc;
    walk.To(t);
    float out[kN] = {};
    if (!walk.padding()) {
      if (walk.doc != before) window.Clear();
      window.Step(out);
      if (t + 1 < min(end, used)) window.Fetch(part, t + 1, column);
      float squares = 0;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        out[n] = device::Silu(out[n]);
        squares += out[n] * out[n];
      }
      if (part.lanes > 0) {
        const float factor = rsqrtf(HeadSum(squares, part.lanes) + eps);
#pragma unroll
        for (int n = 0; n < kN; ++n) out[n] *= factor;
      }
    }
    if (live) StoreVec<kN>(part.out + t * part.channels + c, out);
  }
}

// Walks W - 1 tokens further than it writes, as in short_conv.cu.
template <typename T, int W>
__global__ void __launch_bounds__(kBlock)
    BackwardKernel(__grid_constant__ const Parts<T> parts, const int32_t* cu,
                   int docs, int64_t tokens, float eps) {
  if (blockIdx.z >= parts.num_parts)
    return MoveRows<true>(parts.move[blockIdx.z - parts.num_parts], tokens);
  const Part<T>& part = parts.part[blockIdx.z];
  const int64_t c = (int64_t(blockIdx.y) * kBlock + threadIdx.x) * kN;
  if (c - threadIdx.x % 32 * kN >= part.channels) return;
  const bool live = c < part.channels;
  const int64_t at = live ? c : 0, column = part.at.Column(at);
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  Window<T, W> window(part, c, live);
  float sum[W][kN] = {};  // sum[j] becomes dx of t - W + 1 + j
  Walk walk(cu, docs, first);
  window.Fill(part, walk, first, column);
  const int64_t used = cu[docs];
  const int64_t end = min(used, first + kTokens + W - 1);
  Pack<T, kN> next_dy;
  const auto fetch = [&](int64_t t) {
    if (t >= end) return;
    window.Fetch(part, t, column);
    next_dy =
        *reinterpret_cast<const Pack<T, kN>*>(part.dy + t * part.channels + at);
  };
  fetch(first);
  for (int64_t t = first; t < first + kTokens + W - 1; ++t) {
    const int before = walk.doc;
    if (t < tokens) walk.To(t);
    if (t < tokens && !walk.padding()) {
      if (walk.doc != before) window.Clear();
      float conv[kN], g[kN];
      window.Step(conv);
#pragma unroll
      for (int n = 0; n < kN; ++n) g[n] = ToFloat(next_dy.v[n]);
      fetch(t + 1);
      if (part.lanes > 0) {
        float squares = 0, along = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const float silu = device::Silu(conv[n]);
          squares += silu * silu;
          along += silu * g[n];
        }
        const float factor = rsqrtf(HeadSum(squares, part.lanes) + eps);
        along = HeadSum(along, part.lanes) * factor * factor;
#pragma unroll
        for (int n = 0; n < kN; ++n)
          g[n] = factor * (g[n] - along * device::Silu(conv[n]));
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) g[n] *= device::SiluGrad(conv[n]);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (t - W + 1 + j < walk.start()) continue;
#pragma unroll
        for (int n = 0; n < kN; ++n) sum[j][n] += window.tap[j][n] * g[n];
      }
    }
    const int64_t done = t - W + 1;
    if (live && done >= first && done < tokens)
      StoreVec<kN>(part.out + done * part.pitch + column, sum[0]);
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int n = 0; n < kN; ++n) sum[j][n] = j + 1 < W ? sum[j + 1][n] : 0;
    }
  }
}

// Whether a launch can take the part.
bool Takes(const Tensor& x, const ColumnGroups& at, const Tensor& w,
           const Tensor& out, int64_t unit_dim) {
  return x.dim(1) % kN == 0 && w.dim(0) % kN == 0 && at.InStepsOf(kN) &&
         w.dim(1) <= 4 && Aligned16(x.raw(), out.raw()) &&
         (unit_dim == 0 || unit_dim == 64 || unit_dim == 128);
}

template <typename T>
Part<T> MakePart(const Tensor& x, const ColumnGroups& at, const Tensor& w,
                 const Tensor& out, int64_t unit_dim) {
  return {.x = x.data<T>(),
          .w = w.data<float>(),
          .dy = nullptr,
          .out = out.data<T>(),
          .channels = w.dim(0),
          .pitch = x.dim(1),
          .at = at,
          .lanes = static_cast<int>(unit_dim / kN)};
}

LaunchShape ShapeFor(int64_t tokens, int64_t channels, size_t parts) {
  constexpr int64_t kChannels = int64_t{kBlock} * kN;
  return {.grid = dim3(unsigned((tokens + kTokens - 1) / kTokens),
                       unsigned((channels + kChannels - 1) / kChannels),
                       unsigned(parts)),
          .block = kBlock};
}

// fn(taps as a constant)
template <typename Fn>
absl::Status ByWidth(int64_t width, Fn&& fn) {
  switch (width) {
    case 1:
      return fn(std::integral_constant<int, 1>{});
    case 2:
      return fn(std::integral_constant<int, 2>{});
    case 3:
      return fn(std::integral_constant<int, 3>{});
    default:
      return fn(std::integral_constant<int, 4>{});
  }
}

// Both passes: kernels(T, width) names the kernel, make(part, T) says what it
// works on.
template <typename Args, typename Kernels, typename Make>
absl::Status LaunchParts(const Exec& exec, const Args& args, Kernels&& kernels,
                         Make&& make) {
  int64_t channels = 0;
  for (const auto& part : args.parts)
    channels = std::max(channels, part.w.dim(0));
  const Tensor& x = args.parts[0].x;
  const int docs = static_cast<int>(args.cu_seqlens.dim(0) - 1);
  return DispatchCuda(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    Parts<T> parts{};
    for (size_t i = 0; i < args.parts.size(); ++i)
      parts.part[i] = make(args.parts[i], zero);
    for (size_t i = 0; i < args.moves.size(); ++i) {
      const ConvFrontMove& move = args.moves[i];
      parts.move[i] = {.wide = move.wide.template data<float>(),
                       .narrow = move.narrow.template data<float>(),
                       .channels = move.narrow.dim(1),
                       .pitch = move.wide.dim(1),
                       .at = move.at};
    }
    parts.num_parts = static_cast<unsigned>(args.parts.size());
    return ByWidth(args.parts[0].w.dim(1), [&](auto width) {
      return Launch(
          kOp, exec,
          ShapeFor(x.dim(0), channels, args.parts.size() + args.moves.size()),
          kernels(zero, width), parts, args.cu_seqlens.template data<int32_t>(),
          docs, x.dim(0), static_cast<float>(args.eps));
    });
  });
}

}  // namespace

absl::StatusOr<bool> ConvFrontForwardCuda(const Exec& exec,
                                          const ConvFrontForwardArgs& args) {
  for (const ConvFrontPart& part : args.parts) {
    if (!Takes(part.x, part.at, part.w, part.y, part.unit_dim)) return false;
  }
  if (args.parts.empty()) return args.moves.empty();
  CADRE_RETURN_IF_ERROR(LaunchParts(
      exec, args,
      [](auto zero, auto width) {
        return ForwardKernel<decltype(zero), width()>;
      },
      [](const ConvFrontPart& part, auto zero) {
        return MakePart<decltype(zero)>(part.x, part.at, part.w, part.y,
                                        part.unit_dim);
      }));
  return true;
}

absl::StatusOr<bool> ConvFrontBackwardCuda(const Exec& exec,
                                           const ConvFrontBackwardArgs& args) {
  for (const ConvFrontBackwardPart& part : args.parts) {
    if (part.dw.present() || !Aligned16(part.dy.raw()) ||
        !Takes(part.x, part.at, part.w, part.dx, part.unit_dim))
      return false;
  }
  if (args.parts.empty()) return args.moves.empty();
  CADRE_RETURN_IF_ERROR(LaunchParts(
      exec, args,
      [](auto zero, auto width) {
        return BackwardKernel<decltype(zero), width()>;
      },
      [](const ConvFrontBackwardPart& part, auto zero) {
        using T = decltype(zero);
        auto made =
            MakePart<T>(part.x, part.at, part.w, part.dx, part.unit_dim);
        made.dy = part.dy.data<T>();
        return made;
      }));
  return true;
}

}  // namespace cadre
