#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_device.cuh"
#include "kernels/common/launch.cuh"

namespace cadre {
namespace {

using attention_device::Params;

constexpr int64_t kMaxHeadDim = 256;

// Both directions name these alike.
template <typename T, typename Args>
Params<T> Shared(const Args& args) {
  Params<T> p = {};
  p.q = args.q.template data<T>();
  p.k = args.k.template data<T>();
  p.v = args.v.template data<T>();
  p.lse = args.lse.template data<float>();
  p.cu = args.cu_seqlens.template data<int32_t>();
  p.selected = args.selected.template data<int32_t>();
  p.num_valid = args.num_valid.template data<int32_t>();
  p.docs = static_cast<int>(args.cu_seqlens.dim(0) - 1);
  p.width =
      args.selected.present() ? static_cast<int>(args.selected.dim(1)) : 0;
  p.heads = static_cast<int>(args.q.dim(1));
  p.kv_heads = static_cast<int>(args.k.dim(1));
  p.qk_dim = static_cast<int>(args.q.dim(2));
  p.v_dim = static_cast<int>(args.v.dim(2));
  p.tokens = args.q.dim(0);
  p.scale = static_cast<float>(args.scale);
  p.vector = p.qk_dim % 8 == 0 && p.v_dim % 8 == 0;
  return p;
}

absl::Status CheckWidths(const Tensor& q, const Tensor& v) {
  const int64_t widest = std::max(q.dim(2), v.dim(2));
  if (widest > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: q is ", q.DebugString(), ", v is ", v.DebugString(),
        "; the CUDA kernels hold heads of at "
        "most ",
        kMaxHeadDim, " columns"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AttentionForwardCuda(const Exec& exec,
                                  const AttentionForwardArgs& args) {
  if (absl::Status status = CheckWidths(args.q, args.v); !status.ok())
    return status;
  if (args.q.dtype() == DType::kBF16) {
    using T = __nv_bfloat16;
    Params<T> p = Shared<T>(args);
    p.out = args.o.data<T>();
    p.vector &= Aligned16(p.q, p.k, p.v, p.out);
    return attention_device::ForwardBf16(exec, p);
  }
  Params<float> p = Shared<float>(args);
  p.out = args.o.data<float>();
  return attention_device::ForwardF32(exec, p);
}

absl::Status AttentionBackwardCuda(const Exec& exec,
                                   const AttentionBackwardArgs& args) {
  if (absl::Status status = CheckWidths(args.q, args.v); !status.ok())
    return status;
  auto fill = [&](auto zero) {
    using T = decltype(zero);
    Params<T> p = Shared<T>(args);
    p.o = args.o.data<T>();
    p.d_o = args.d_o.data<T>();
    p.dq = args.dq.data<T>();
    p.dk = args.dk.data<T>();
    p.dv = args.dv.data<T>();
    p.vector &= Aligned16(p.q, p.k, p.v, p.d_o, p.dq, p.dk, p.dv);
    return p;
  };
  if (args.q.dtype() == DType::kF32)
    return attention_device::BackwardF32(exec, fill(float{}));
  if (args.q.dim(2) < 2) {
    return absl::InvalidArgumentError(
        "attention: the backward of bf16 heads on CUDA needs keys of at least "
        "2 columns");
  }
  return attention_device::BackwardBf16(exec, fill(__nv_bfloat16{}));
}

}  // namespace cadre
