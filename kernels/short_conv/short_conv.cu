#include "kernels/common/column_groups.h"
#include "kernels/common/documents.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/math.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/short_conv/conv_walk.cuh"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

constexpr char kOp[] = "short_conv";
constexpr int kTokens = 16;   // a thread walks this many
constexpr int kBlock = 128;   // threads, side by side over channels
constexpr int kMaxWidth = 8;  // taps

// Rows of x and dx: how far apart, and which of their columns are channels.
struct Rows {
  int64_t pitch;
  ColumnGroups at;
};

// A thread holds N channels, their W taps and the last W - 1 rows of x.
template <typename T, int N, int W>
__global__ void ForwardKernel(const T* __restrict__ x, Rows rows,
                              const float* __restrict__ w, const int32_t* cu,
                              int docs, int64_t tokens, int64_t channels,
                              T* __restrict__ y) {
  const int64_t c = (int64_t(blockIdx.y) * kBlock + threadIdx.x) * N;
  if (c >= channels) return;
  const int64_t at = rows.at.Column(c);
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  float tap[W][N], row[W][N];
#pragma unroll
  for (int j = 0; j < W; ++j) {
#pragma unroll
    for (int n = 0; n < N; ++n) tap[j][n] = w[(c + n) * W + j];
  }
  Walk walk(cu, docs, first);
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    const int64_t source = first - W + 1 + j;
#pragma unroll
    for (int n = 0; n < N; ++n) row[j][n] = 0;
    if (!walk.padding() && source >= walk.start())
      LoadVec<N>(x + source * rows.pitch + at, row[j]);
  }
  const int64_t end = min(tokens, first + kTokens);
  for (int64_t t = first; t < end; ++t) {
    const int before = walk.doc;
    walk.To(t);
    float out[N] = {};
    if (!walk.padding()) {
      if (walk.doc != before) {
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
#pragma unroll
          for (int n = 0; n < N; ++n) row[j][n] = 0;
        }
      }
      LoadVec<N>(x + t * rows.pitch + at, row[W - 1]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < W; ++j) sum += tap[j][n] * row[j][n];
        out[n] = device::Silu(sum);
      }
#pragma unroll
      for (int j = 0; j < W - 1; ++j) {
#pragma unroll
        for (int n = 0; n < N; ++n) row[j][n] = row[j + 1][n];
      }
    }
    StoreVec<N>(y + t * channels + c, out);
  }
}

// Walks W - 1 tokens further than it writes: dx of a token is complete once dc
// of the W - 1 tokens behind it is known.
template <typename T, int N, int W>
__global__ void BackwardKernel(const T* __restrict__ x, Rows rows,
                               const float* __restrict__ w, const int32_t* cu,
                               int docs, const T* __restrict__ dy,
                               int64_t tokens, int64_t channels,
                               T* __restrict__ dx) {
  const int64_t c = (int64_t(blockIdx.y) * kBlock + threadIdx.x) * N;
  if (c >= channels) return;
  const int64_t at = rows.at.Column(c);
  const int64_t first = int64_t(blockIdx.x) * kTokens;
  float tap[W][N], row[W][N], sum[W][N];  // sum[j] becomes dx of t - W + 1 + j
#pragma unroll
  for (int j = 0; j < W; ++j) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      tap[j][n] = w[(c + n) * W + j];
      sum[j][n] = 0;
      row[j][n] = 0;
    }
  }
  Walk walk(cu, docs, first);
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    const int64_t source = first - W + 1 + j;
    if (!walk.padding() && source >= walk.start())
      LoadVec<N>(x + source * rows.pitch + at, row[j]);
  }
  for (int64_t t = first; t < first + kTokens + W - 1; ++t) {
    const int before = walk.doc;
    if (t < tokens) walk.To(t);
    if (t < tokens && !walk.padding()) {
      if (walk.doc != before) {
#pragma unroll
        for (int j = 0; j < W - 1; ++j) {
#pragma unroll
          for (int n = 0; n < N; ++n) row[j][n] = 0;
        }
      }
      float g[N];
      LoadVec<N>(x + t * rows.pitch + at, row[W - 1]);
      LoadVec<N>(dy + t * channels + c, g);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float conv = 0;
#pragma unroll
        for (int j = 0; j < W; ++j) conv += tap[j][n] * row[j][n];
        g[n] *= device::SiluGrad(conv);
      }
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (t - W + 1 + j < walk.start()) continue;
#pragma unroll
        for (int n = 0; n < N; ++n) sum[j][n] += tap[j][n] * g[n];
      }
#pragma unroll
      for (int j = 0; j < W - 1; ++j) {
#pragma unroll
        for (int n = 0; n < N; ++n) row[j][n] = row[j + 1][n];
      }
    }
    const int64_t done = t - W + 1;
    if (done >= first && done < tokens)
      StoreVec<N>(dx + done * rows.pitch + at, sum[0]);
#pragma unroll
    for (int j = 0; j < W; ++j) {
#pragma unroll
      for (int n = 0; n < N; ++n) sum[j][n] = j + 1 < W ? sum[j + 1][n] : 0;
    }
  }
}

// One term of dw, column = channel * W + tap.
template <typename T>
struct TapTerm {
  const T* x;
  Rows rows;
  const float* w;
  const int32_t* cu;
  int docs;
  const T* dy;
  int64_t channels;
  int width;
  __device__ float operator()(int64_t t, int64_t column) const {
    const int64_t c = column / width;
    const int tap = static_cast<int>(column - c * width);
    const DocumentRange document = DocumentAt(cu, docs, t);
    const int64_t source = t - width + 1 + tap;
    if (document.begin == document.end || source < document.begin) return 0;
    const int64_t at = rows.at.Column(c);
    float conv = 0;
    for (int j = 0; j < width; ++j) {
      const int64_t s = t - width + 1 + j;
      if (s >= document.begin)
        conv += w[c * width + j] * ToFloat(x[s * rows.pitch + at]);
    }
    return ToFloat(dy[t * channels + c]) * device::SiluGrad(conv) *
           ToFloat(x[source * rows.pitch + at]);
  }
};

// Calls fn(zero of T, channels of a thread, taps), the latter two constants.
template <typename Args, typename Fn>
absl::Status Dispatch(const Args& args, bool aligned, Fn&& fn) {
  const int64_t channels = args.w.dim(0), width = args.w.dim(1);
  const bool whole =
      channels % 4 == 0 && args.x.dim(1) % 4 == 0 && args.at.InStepsOf(4);
  return DispatchCuda(args.x.dtype(), [&](auto zero) {
    auto with_width = [&](auto n) -> absl::Status {
      switch (width) {
#define CADRE_CASE(W) \
  case W:             \
    return fn(zero, n, std::integral_constant<int, W>{});
        CADRE_CASE(1)
        CADRE_CASE(2)
        CADRE_CASE(3)
        CADRE_CASE(4)
        CADRE_CASE(5)
        CADRE_CASE(6)
        CADRE_CASE(7)
        CADRE_CASE(8)
#undef CADRE_CASE
      }
      return absl::InvalidArgumentError(absl::StrCat(
          kOp, ": w has ", width,
          " taps; the CUDA kernels are compiled for at most ", kMaxWidth));
    };
    // Long filters are rare: one channel a thread will do.
    return aligned && whole && width <= 4
               ? with_width(std::integral_constant<int, 4>{})
               : with_width(std::integral_constant<int, 1>{});
  });
}

LaunchShape ShapeFor(int64_t tokens, int64_t channels, int n) {
  const int64_t threads = (channels + n - 1) / n;
  return {.grid = dim3(unsigned((tokens + kTokens - 1) / kTokens),
                       unsigned((threads + kBlock - 1) / kBlock)),
          .block = kBlock};
}

}  // namespace

absl::Status ShortConvForwardCuda(const Exec& exec,
                                  const ShortConvForwardArgs& args) {
  const int64_t tokens = args.x.dim(0), channels = args.w.dim(0);
  const Rows rows{.pitch = args.x.dim(1), .at = args.at};
  const int docs = static_cast<int>(args.cu_seqlens.dim(0) - 1);
  return Dispatch(args, Aligned16(args.x.raw(), args.y.raw()),
                  [&](auto zero, auto n, auto width) {
                    using T = decltype(zero);
                    return Launch(kOp, exec, ShapeFor(tokens, channels, n),
                                  ForwardKernel<T, n(), width()>,
                                  args.x.data<T>(), rows, args.w.data<float>(),
                                  args.cu_seqlens.data<int32_t>(), docs, tokens,
                                  channels, args.y.data<T>());
                  });
}

absl::Status ShortConvBackwardCuda(const Exec& exec,
                                   const ShortConvBackwardArgs& args) {
  const int64_t tokens = args.x.dim(0), channels = args.w.dim(0);
  const Rows rows{.pitch = args.x.dim(1), .at = args.at};
  const int docs = static_cast<int>(args.cu_seqlens.dim(0) - 1);
  return Dispatch(
      args, Aligned16(args.x.raw(), args.dy.raw(), args.dx.raw()),
      [&](auto zero, auto n, auto width) -> absl::Status {
        using T = decltype(zero);
        const int32_t* const cu = args.cu_seqlens.data<int32_t>();
        if (args.dw.present() && tokens > 0) {
          const absl::Status status = SumRows(
              kOp, exec, tokens, channels * width(),
              /*accumulate=*/true, args.dw.data<float>(),
              TapTerm<T>{args.x.data<T>(), rows, args.w.data<float>(), cu, docs,
                         args.dy.data<T>(), channels, width()});
          if (!status.ok()) return status;
        }
        return Launch(kOp, exec, ShapeFor(tokens, channels, n),
                      BackwardKernel<T, n(), width()>, args.x.data<T>(), rows,
                      args.w.data<float>(), cu, docs, args.dy.data<T>(), tokens,
                      channels, args.dx.data<T>());
      });
}

}  // namespace cadre
