// What happens behind a sublayer, and at both ends of the network.

#include <algorithm>
#include <vector>

#include "kernels/common/check.h"
#include "kernels/hyper_connection/hyper_connection.h"

namespace cadre {
namespace {

constexpr int64_t kTokenGrain = 4;

}  // namespace

absl::Status HyperConnectionWriteCpu(const Exec& exec,
                                     const HyperConnectionWriteArgs& args) {
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t m = args.streams.dim(1), width = args.streams.dim(2);
    ParallelFor(exec, args.streams.dim(0), kTokenGrain,
                [&](int64_t begin, int64_t end) {
                  std::vector<T> x(m * width);
                  for (int64_t t = begin; t < end; ++t) {
                    // A copy, since the result may take the place of the
                    // streams.
                    std::copy_n(args.streams.data<T>() + t * m * width,
                                m * width, x.data());
                    const T* const o = args.o.data<T>() + t * width;
                    const T* const post = args.post.data<T>() + t * m;
                    const T* const comb = args.comb.data<T>() + t * m * m;
                    for (int64_t i = 0; i < m; ++i) {
                      T* const out =
                          args.streams_out.data<T>() + (t * m + i) * width;
                      for (int64_t d = 0; d < width; ++d)
                        out[d] = post[i] * o[d];
                      for (int64_t j = 0; j < m; ++j) {
                        const T c = comb[j * m + i];
                        for (int64_t d = 0; d < width; ++d)
                          out[d] += c * x[j * width + d];
                      }
                    }
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status HyperConnectionWriteBackwardCpu(
    const Exec& exec, const HyperConnectionWriteBackwardArgs& args) {
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t m = args.streams.dim(1), width = args.streams.dim(2);
    auto dot = [width](const T* a, const T* b) {
      T sum = 0;
      for (int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
      return sum;
    };
    ParallelFor(exec, args.streams.dim(0), kTokenGrain,
                [&](int64_t begin, int64_t end) {
                  std::vector<T> grad(m * width);
                  for (int64_t t = begin; t < end; ++t) {
                    // A copy, since dstreams may take its place.
                    std::copy_n(args.dstreams_out.data<T>() + t * m * width,
                                m * width, grad.data());
                    const T* const x = args.streams.data<T>() + t * m * width;
                    const T* const o = args.o.data<T>() + t * width;
                    const T* const post = args.post.data<T>() + t * m;
                    const T* const comb = args.comb.data<T>() + t * m * m;
                    T* const d_o = args.d_o.data<T>() + t * width;
                    std::fill_n(d_o, width, T{0});
                    for (int64_t i = 0; i < m; ++i) {
                      const T* const g = grad.data() + i * width;
                      args.dpost.data<T>()[t * m + i] = dot(g, o);
                      for (int64_t d = 0; d < width; ++d)
                        d_o[d] += post[i] * g[d];
                    }
                    for (int64_t j = 0; j < m; ++j) {
                      T* const dx =
                          args.dstreams.data<T>() + (t * m + j) * width;
                      std::fill_n(dx, width, T{0});
                      for (int64_t i = 0; i < m; ++i) {
                        const T* const g = grad.data() + i * width;
                        args.dcomb.data<T>()[(t * m + j) * m + i] =
                            dot(x + j * width, g);
                        const T c = comb[j * m + i];
                        for (int64_t d = 0; d < width; ++d) dx[d] += c * g[d];
                      }
                    }
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status StreamsBroadcastCpu(const Exec& exec, const StreamsArgs& args) {
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t m = args.streams.dim(1), width = args.streams.dim(2);
    const T factor = static_cast<T>(args.factor);
    ParallelFor(exec, args.streams.dim(0), kTokenGrain,
                [&](int64_t begin, int64_t end) {
                  for (int64_t row = begin * m; row < end * m; ++row) {
                    const T* const x = args.x.data<T>() + row / m * width;
                    T* const out = args.streams.data<T>() + row * width;
                    for (int64_t d = 0; d < width; ++d) out[d] = factor * x[d];
                  }
                });
    return absl::OkStatus();
  });
}

absl::Status StreamsSumCpu(const Exec& exec, const StreamsArgs& args) {
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t m = args.streams.dim(1), width = args.streams.dim(2);
    const T factor = static_cast<T>(args.factor);
    ParallelFor(exec, args.streams.dim(0), kTokenGrain,
                [&](int64_t begin, int64_t end) {
                  for (int64_t t = begin; t < end; ++t) {
                    const T* const in = args.streams.data<T>() + t * m * width;
                    T* const x = args.x.data<T>() + t * width;
                    for (int64_t d = 0; d < width; ++d) {
                      T sum = 0;
                      for (int64_t i = 0; i < m; ++i) sum += in[i * width + d];
                      x[d] = factor * sum;
                    }
                  }
                });
    return absl::OkStatus();
  });
}

}  // namespace cadre
