// What happens in front of a sublayer: the mapping of the streams to the mixing
// weights, and its backward.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/sinkhorn.h"

namespace cadre {
namespace {

constexpr int64_t kTokenGrain = 4;

template <typename T>
T Sigmoid(T x) {
  const T tail = std::exp(-std::abs(x));
  return x >= 0 ? 1 / (1 + tail) : tail / (1 + tail);
}

// Which of the three scales logit q has.
int64_t ScaleOf(int64_t q, int64_t m) { return std::min<int64_t>(q / m, 2); }

// The streams of a token as one row.
Tensor Flat(const Tensor& streams) {
  return streams.Reshape({streams.dim(0), streams.dim(1) * streams.dim(2)});
}

template <typename T>
struct Mapping {
  Mapping(const HyperConnectionParameters& parameters, int64_t m)
      : m(m),
        num_logits((2 + m) * m),
        eps(static_cast<T>(parameters.eps)),
        base(parameters.base.data<T>()),
        scale(parameters.scale.data<T>()),
        sinkhorn_iters(parameters.sinkhorn_iters) {}
  T Argument(const T* logits, int64_t q) const {
    return scale[ScaleOf(q, m)] * logits[q] + base[q];
  }
  // Arguments of the m x m softmax.
  void CombArguments(const T* logits, T* out) const {
    for (int64_t i = 0; i < m * m; ++i) out[i] = Argument(logits, 2 * m + i);
  }

  int64_t m, num_logits;
  T eps;
  const T* base;
  const T* scale;
  int64_t sinkhorn_iters;
};

template <typename T>
void ReadToken(const HyperConnectionReadArgs& args, const Mapping<T>& mapping,
               int64_t t, Sinkhorn<T>& sinkhorn, T* comb_arguments) {
  const int64_t m = mapping.m, width = args.streams.dim(2);
  const T* const x = args.streams.data<T>() + t * m * width;
  T squares = 0;
  for (int64_t d = 0; d < m * width; ++d) squares += x[d] * x[d];
  const T rstd = 1 / std::sqrt(squares / static_cast<T>(m * width) +
                               static_cast<T>(args.parameters.norm_eps));
  args.rstd.data<T>()[t] = rstd;
  T* const logits = args.logits.data<T>() + t * mapping.num_logits;
  for (int64_t q = 0; q < mapping.num_logits; ++q) logits[q] *= rstd;
  T* const pre = args.pre.data<T>() + t * m;
  T* const post = args.post.data<T>() + t * m;
  for (int64_t i = 0; i < m; ++i) {
    pre[i] = Sigmoid(mapping.Argument(logits, i)) + mapping.eps;
    post[i] = 2 * Sigmoid(mapping.Argument(logits, m + i));
  }
  mapping.CombArguments(logits, comb_arguments);
  std::copy_n(sinkhorn.Forward(comb_arguments), m * m,
              args.comb.data<T>() + t * m * m);
  T* const out = args.x.data<T>() + t * width;
  std::fill_n(out, width, T{0});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t d = 0; d < width; ++d) out[d] += pre[i] * x[i * width + d];
  }
}

// Writes d(argument) of each logit to the workspace, and adds the direct path
// through x to dstreams.
template <typename T>
void ArgumentGradients(const HyperConnectionReadBackwardArgs& args,
                       const Mapping<T>& mapping, int64_t t,
                       Sinkhorn<T>& sinkhorn, T* comb_arguments) {
  const int64_t m = mapping.m, width = args.streams.dim(2);
  const T* const x = args.streams.data<T>() + t * m * width;
  const T* const dx = args.dx.data<T>() + t * width;
  T* const dstreams = args.dstreams.data<T>() + t * m * width;
  T* const darg = args.workspace.data<T>() + t * mapping.num_logits;
  for (int64_t i = 0; i < m; ++i) {
    const T pre = args.pre.data<T>()[t * m + i];
    const T post = args.post.data<T>()[t * m + i];
    T dpre = 0;
    for (int64_t d = 0; d < width; ++d) {
      dpre += dx[d] * x[i * width + d];
      dstreams[i * width + d] += pre * dx[d];
    }
    const T s = pre - mapping.eps;
    darg[i] = dpre * s * (1 - s);
    darg[m + i] = args.dpost.data<T>()[t * m + i] * post * (1 - post / 2);
  }
  mapping.CombArguments(args.logits.data<T>() + t * mapping.num_logits,
                        comb_arguments);
  sinkhorn.Forward(comb_arguments);
  std::copy_n(args.dcomb.data<T>() + t * m * m, m * m, darg + 2 * m);
  sinkhorn.Backward(darg + 2 * m);
}

// dbase and dscale, in token order and in double: terms of many tokens cancel.
template <typename T>
void VectorGradients(const HyperConnectionReadBackwardArgs& args,
                     const Mapping<T>& mapping) {
  if (!args.dbase.present() && !args.dscale.present()) return;
  const int64_t num_logits = mapping.num_logits;
  std::vector<double> base(num_logits), scale(3);
  for (int64_t t = 0; t < args.streams.dim(0); ++t) {
    const T* const darg = args.workspace.data<T>() + t * num_logits;
    const T* const logits = args.logits.data<T>() + t * num_logits;
    for (int64_t q = 0; q < num_logits; ++q) {
      base[q] += darg[q];
      scale[ScaleOf(q, mapping.m)] += darg[q] * logits[q];
    }
  }
  if (args.dbase.present()) {
    for (int64_t q = 0; q < num_logits; ++q)
      args.dbase.data<T>()[q] += static_cast<T>(base[q]);
  }
  if (args.dscale.present()) {
    for (int64_t i = 0; i < 3; ++i)
      args.dscale.data<T>()[i] += static_cast<T>(scale[i]);
  }
}

}  // namespace

absl::Status HyperConnectionReadCpu(const Exec& exec,
                                    const HyperConnectionReadArgs& args) {
  // The norm has no weight, so rstd may follow the product.
  CADRE_RETURN_IF_ERROR(Gemm(exec, {.a = Flat(args.streams),
                                    .b = args.parameters.fn,
                                    .c = args.logits,
                                    .trans_b = true}));
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const Mapping<T> mapping(args.parameters, args.streams.dim(1));
    ParallelFor(exec, args.streams.dim(0), kTokenGrain,
                [&](int64_t begin, int64_t end) {
                  Sinkhorn<T> sinkhorn(mapping.m, mapping.sinkhorn_iters,
                                       mapping.eps);
                  std::vector<T> scratch(mapping.m * mapping.m);
                  for (int64_t t = begin; t < end; ++t)
                    ReadToken(args, mapping, t, sinkhorn, scratch.data());
                });
    return absl::OkStatus();
  });
}

absl::Status HyperConnectionReadBackwardCpu(
    const Exec& exec, const HyperConnectionReadBackwardArgs& args) {
  return DispatchCpu(args.streams.dtype(), [&](auto scalar) -> absl::Status {
    using T = decltype(scalar);
    const Mapping<T> mapping(args.parameters, args.streams.dim(1));
    const int64_t num_tokens = args.streams.dim(0);
    const int64_t row = args.streams.dim(1) * args.streams.dim(2);
    ParallelFor(exec, num_tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
      Sinkhorn<T> sinkhorn(mapping.m, mapping.sinkhorn_iters, mapping.eps);
      std::vector<T> scratch(mapping.m * mapping.m);
      for (int64_t t = begin; t < end; ++t)
        ArgumentGradients(args, mapping, t, sinkhorn, scratch.data());
    });
    VectorGradients(args, mapping);
    // From here on the workspace holds rstd dlogits. With f = rstd X and
    // u = df the norm gives dX = rstd u - rstd^2 X mean(u f), and the mean is
    // <dlogits, logits> / row: u itself is never needed.
    ParallelFor(exec, num_tokens, kTokenGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T rstd = args.rstd.data<T>()[t];
        T* const slope = args.workspace.data<T>() + t * mapping.num_logits;
        const T* const logits = args.logits.data<T>() + t * mapping.num_logits;
        T along = 0;
        for (int64_t q = 0; q < mapping.num_logits; ++q) {
          slope[q] *= mapping.scale[ScaleOf(q, mapping.m)] * rstd;
          along += slope[q] * logits[q];
        }
        along *= rstd / static_cast<T>(row);
        const T* const x = args.streams.data<T>() + t * row;
        T* const dstreams = args.dstreams.data<T>() + t * row;
        for (int64_t d = 0; d < row; ++d) dstreams[d] -= along * x[d];
      }
    });
    CADRE_RETURN_IF_ERROR(Gemm(exec, {.a = args.workspace,
                                      .b = args.parameters.fn,
                                      .c = Flat(args.dstreams),
                                      .beta = 1}));
    if (!args.dfn.present()) return absl::OkStatus();
    return Gemm(exec, {.a = args.workspace,
                       .b = Flat(args.streams),
                       .c = args.dfn,
                       .trans_a = true,
                       .beta = 1});
  });
}

}  // namespace cadre
