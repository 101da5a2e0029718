#include <cmath>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/linear_attention/generic.h"
#include "kernels/linear_attention/generic_backward.cuh"
#include "kernels/linear_attention/generic_finish.cuh"
#include "kernels/linear_attention/generic_forward.cuh"
#include "kernels/linear_attention/generic_state.cuh"

// The host side of the delta rule for every dtype and width that the chunked
// kernels do not take.

namespace cadre::linear_attention::generic {

namespace {

template <typename T>
__global__ void ZeroPaddingKernel(const int32_t* cu, int docs, int64_t tokens,
                                  int64_t width, T* x) {
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i =
           cu[docs] * width + int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
       i < tokens * width; i += stride)
    x[i] = FromFloat<T>(0);
}

template <typename T>
Problem<T> Describe(const GenericInputs& in) {
  Problem<T> p = {};
  p.q = in.q.data<T>();
  p.k = in.k.data<T>();
  p.v = in.v.data<T>();
  p.z = in.z.data<T>();
  p.a = in.a.data<float>();
  p.beta = in.beta.data<float>();
  p.a_log = in.a_log.data<float>();
  p.dt_bias = in.dt_bias.data<float>();
  p.cu = in.cu_seqlens.data<int32_t>();
  p.initial_state = in.initial_state.data<float>();
  p.tokens = in.q.dim(0);
  p.docs = static_cast<int>(in.cu_seqlens.dim(0) - 1);
  p.heads = static_cast<int>(in.v.dim(1));
  p.key_heads = static_cast<int>(in.q.dim(1));
  p.key_dim = static_cast<int>(in.q.dim(2));
  p.value_dim = static_cast<int>(in.v.dim(2));
  p.bounded = in.bounded;
  p.bound = in.bound;
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.key_dim)));
  return p;
}

// Calls fn(zero of T, key rows of a lane as a constant).
template <typename Fn>
absl::Status Dispatch(absl::string_view op, const Tensor& q, Fn&& fn) {
  if (q.dim(2) > kGenericMaxKeyDim) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": q is ", q.DebugString(),
                     "; the CUDA kernels hold keys of at most ",
                     kGenericMaxKeyDim, " channels"));
  }
  return DispatchCuda(q.dtype(), [&](auto zero) {
    switch (GenericRows(q.dim(2))) {
      case 1:
        return fn(zero, std::integral_constant<int, 1>{});
      case 4:
        return fn(zero, std::integral_constant<int, 4>{});
      default:
        return fn(zero, std::integral_constant<int, 8>{});
    }
  });
}

template <typename T>
absl::Status ZeroPadding(absl::string_view op, const Exec& exec,
                         const Problem<T>& p, int64_t width, T* x) {
  return Launch(op, exec, {.grid = 64, .block = 256}, ZeroPaddingKernel<T>,
                p.cu, p.docs, p.tokens, width, x);
}

template <typename T>
absl::Status Finish(absl::string_view op, const Exec& exec, const Problem<T>& p,
                    const Sums& sums, const GenericGradients& g) {
  CADRE_RETURN_IF_ERROR(Launch(
      op, exec,
      {.grid = GridFor(p.tokens * p.key_heads * p.key_dim, 256), .block = 256},
      FinishKeysKernel<T>, p, sums, g.dq.data<T>(), g.dk.data<T>()));
  CADRE_RETURN_IF_ERROR(Launch(
      op, exec, {.grid = unsigned((p.tokens * p.heads + 3) / 4), .block = 128},
      FinishGatesKernel<T>, p, sums, g.dz.data<T>(), g.da.data<float>(),
      g.dbeta.data<float>()));
  if (g.da_log.present()) {
    CADRE_RETURN_IF_ERROR(SumRows(op, exec, p.tokens * p.key_dim, p.heads,
                                  /*accumulate=*/true, g.da_log.data<float>(),
                                  RateTerm<T>{p, sums.dlog}));
  }
  if (!g.ddt_bias.present()) return absl::OkStatus();
  return SumRows(op, exec, p.tokens, g.ddt_bias.num_elements(),
                 /*accumulate=*/true, g.ddt_bias.data<float>(),
                 BiasTerm<T>{p, sums.dlog});
}

absl::Status RunForward(absl::string_view op, const Exec& exec,
                        const GenericInputs& in, const Tensor& o,
                        const Tensor& final_state) {
  return Dispatch(op, in.q, [&](auto zero, auto rows) -> absl::Status {
    using T = decltype(zero);
    const Problem<T> p = Describe<T>(in);
    CADRE_RETURN_IF_ERROR(
        ZeroPadding(op, exec, p, int64_t(p.heads) * p.value_dim, o.data<T>()));
    return Launch(
        op, exec,
        {.grid =
             dim3(p.docs, p.heads, unsigned((p.value_dim + kTile - 1) / kTile)),
         .block = 32 * kWarps},
        ForwardKernel<T, rows()>, p, o.data<T>(), final_state.data<float>());
  });
}

absl::Status RunBackward(absl::string_view op, const Exec& exec,
                         const GenericInputs& in, const GenericGradients& g,
                         const Tensor& workspace) {
  const GenericLayout at = LayOutGeneric(in.q.dim(0), in.v.dim(1), in.q.dim(2));
  if (!workspace.present() || workspace.num_bytes() < at.floats * 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": workspace is ", workspace.DebugString(),
                     ", expected at least ", at.floats * 4, " bytes"));
  }
  float* const base = static_cast<float*>(workspace.raw());
  const Sums sums = {base + at.dq,    base + at.dk,     base + at.dlog,
                     base + at.dbeta, base + at.starts, base + at.decayed};
  return Dispatch(op, in.q, [&](auto zero, auto rows) -> absl::Status {
    using T = decltype(zero);
    const Problem<T> p = Describe<T>(in);
    CADRE_RETURN_IF_ERROR(ZeroPadding(
        op, exec, p, int64_t(p.heads) * p.value_dim, g.dv.data<T>()));
    const size_t shared = 2 * kWarps * (3 * p.key_dim + 1) * sizeof(float);
    // Without value columns one pass still sets the sums to zero.
    for (int column = 0; column == 0 || column < p.value_dim; column += kTile) {
      CADRE_RETURN_IF_ERROR(Launch(
          op, exec,
          {.grid = unsigned(p.heads),
           .block = 32 * kWarps,
           .shared_bytes = shared},
          BackwardKernel<T, rows()>, p, g.d_o.data<T>(),
          g.d_final_state.data<float>(), g.dv.data<T>(),
          g.d_initial_state.data<float>(), sums, column, p.tokens / 64 + 1));
    }
    return Finish(op, exec, p, sums, g);
  });
}

}  // namespace
}  // namespace cadre::linear_attention::generic

namespace cadre::linear_attention {

absl::Status GenericForward(absl::string_view op, const Exec& exec,
                            const GenericInputs& in, const Tensor& o,
                            const Tensor& final_state) {
  return generic::RunForward(op, exec, in, o, final_state);
}

absl::Status GenericBackward(absl::string_view op, const Exec& exec,
                             const GenericInputs& in, const GenericGradients& g,
                             const Tensor& workspace) {
  return generic::RunBackward(op, exec, in, g, workspace);
}

}  // namespace cadre::linear_attention
