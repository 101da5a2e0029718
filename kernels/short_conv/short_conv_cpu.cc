#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/scalar_math.h"
#include "kernels/common/tensor.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

// Channels never mix, so the work is cut by channels, in blocks whose rows are
// a few cache lines.
constexpr int64_t kChannelBlock = 64;

// The taps of channels [begin, end) as [W][end - begin], so that the loops over
// channels run over contiguous memory.
template <typename S>
std::vector<S> Taps(const Tensor& w, int64_t begin, int64_t end) {
  const int64_t width = w.dim(1);
  std::vector<S> taps(width * (end - begin));
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t j = 0; j < width; ++j)
      taps[j * (end - begin) + c - begin] = w.data<S>()[c * width + j];
  }
  return taps;
}

// conv[0, n) = the sum before SiLU at token t of a document starting at
// `start`; x points to the first channel of the block in token 0, and `pitch`
// elements further to the one in token 1.
template <typename S>
void Convolve(const S* x, int64_t pitch, const S* taps, int64_t width,
              int64_t start, int64_t t, int64_t n, S* conv) {
  std::fill_n(conv, n, S(0));
  for (int64_t j = 0; j < width; ++j) {
    const int64_t source = t - width + 1 + j;
    if (source < start) continue;
    const S* row = x + source * pitch;
    const S* tap = taps + j * n;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) conv[c] += tap[c] * row[c];
  }
}

// A block lies within one group, so that its columns are side by side.
template <typename Args, typename Body>
void ForChannelBlocks(const Exec& exec, const Args& args, Body body) {
  const int64_t channels = args.w.dim(0);
  if (channels == 0) return;
  const int64_t group = args.at.group == 0 ? channels : args.at.group;
  const int64_t blocks = (group + kChannelBlock - 1) / kChannelBlock;
  ParallelFor(exec, channels / group * blocks, 1,
              [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i) {
                  const int64_t start = i / blocks * group;
                  const int64_t at = i % blocks * kChannelBlock;
                  body(start + at, start + std::min(group, at + kChannelBlock));
                }
              });
}

template <typename S>
absl::Status Forward(const Exec& exec, const ShortConvForwardArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t channels = args.w.dim(0), pitch = args.x.dim(1);
  const int64_t width = args.w.dim(1);
  const int64_t docs = args.cu_seqlens.dim(0) - 1;
  const int32_t* const cu = args.cu_seqlens.data<int32_t>();
  ForChannelBlocks(exec, args, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const std::vector<S> taps = Taps<S>(args.w, begin, end);
    const S* x = args.x.data<S>() + args.at.Column(begin);
    S* y = args.y.data<S>() + begin;
    for (int64_t doc = 0; doc < docs; ++doc) {
      for (int64_t t = cu[doc]; t < cu[doc + 1]; ++t) {
        S* out = y + t * channels;
        Convolve(x, pitch, taps.data(), width, cu[doc], t, n, out);
        for (int64_t c = 0; c < n; ++c) out[c] = Silu(out[c]);
      }
    }
    for (int64_t t = cu[docs]; t < num_tokens; ++t)
      std::fill_n(y + t * channels, n, S(0));
  });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const ShortConvBackwardArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t channels = args.w.dim(0), pitch = args.x.dim(1);
  const int64_t width = args.w.dim(1);
  const int64_t docs = args.cu_seqlens.dim(0) - 1;
  const int32_t* const cu = args.cu_seqlens.data<int32_t>();
  ForChannelBlocks(exec, args, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const std::vector<S> taps = Taps<S>(args.w, begin, end);
    std::vector<double> dtaps(args.dw.present() ? taps.size() : 0, 0.0);
    std::vector<S> dc(n);
    const S* x = args.x.data<S>() + args.at.Column(begin);
    const S* dy = args.dy.data<S>() + begin;
    S* dx = args.dx.data<S>() + args.at.Column(begin);
    for (int64_t t = 0; t < num_tokens; ++t)
      std::fill_n(dx + t * pitch, n, S(0));
    for (int64_t doc = 0; doc < docs; ++doc) {
      for (int64_t t = cu[doc]; t < cu[doc + 1]; ++t) {
        Convolve(x, pitch, taps.data(), width, cu[doc], t, n, dc.data());
        for (int64_t c = 0; c < n; ++c)
          dc[c] = dy[t * channels + c] * SiluGrad(dc[c]);
        for (int64_t j = 0; j < width; ++j) {
          const int64_t source = t - width + 1 + j;
          if (source < cu[doc]) continue;
          const S* tap = taps.data() + j * n;
          S* row = dx + source * pitch;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) row[c] += tap[c] * dc[c];
          if (dtaps.empty()) continue;
          const S* x_row = x + source * pitch;
          double* dtap = dtaps.data() + j * n;
#pragma omp simd
          for (int64_t c = 0; c < n; ++c) dtap[c] += dc[c] * x_row[c];
        }
      }
    }
    if (dtaps.empty()) return;
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t j = 0; j < width; ++j)
        args.dw.data<S>()[(begin + c) * width + j] +=
            static_cast<S>(dtaps[j * n + c]);
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status ShortConvForwardCpu(const Exec& exec,
                                 const ShortConvForwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status ShortConvBackwardCpu(const Exec& exec,
                                  const ShortConvBackwardArgs& args) {
  return DispatchCpu(args.x.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
