#include "kernels/attention/attention.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// attention_cpu.cc
absl::Status AttentionForwardCpu(const Exec& exec, const AttentionForwardArgs&);
absl::Status AttentionBackwardCpu(const Exec& exec,
                                  const AttentionBackwardArgs&);
CADRE_CUDA_IMPL absl::Status AttentionForwardCuda(const Exec& exec,
                                                  const AttentionForwardArgs&);
CADRE_CUDA_IMPL absl::Status AttentionBackwardCuda(
    const Exec& exec, const AttentionBackwardArgs&);

namespace {

constexpr char kOp[] = "attention";

// CPU only: rows ascend strictly within [0, position].
absl::Status CheckSelectedValues(const Tensor& cu_seqlens,
                                 const Tensor& selected,
                                 const Tensor& num_valid) {
  const int32_t* const cu = cu_seqlens.data<int32_t>();
  const int64_t width = selected.dim(1);
  for (int64_t doc = 0; doc + 1 < cu_seqlens.dim(0); ++doc) {
    for (int64_t t = cu[doc]; t < cu[doc + 1]; ++t) {
      const int32_t count = num_valid.data<int32_t>()[t];
      if (count < 0 || count > width) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": num_valid[", t, "] is ", count,
                         ", expected 0 to the row width ", width));
      }
      const int32_t* const row = selected.data<int32_t>() + t * width;
      int64_t last = -1;
      for (int32_t i = 0; i < count; ++i) {
        if (row[i] <= last || row[i] > t - cu[doc]) {
          return absl::InvalidArgumentError(absl::StrCat(
              kOp, ": selected[", t, ",", i, "] is ", row[i], " after ", last,
              "; keys ascend and lie in 0 to the query's position ",
              t - cu[doc]));
        }
        last = row[i];
      }
    }
  }
  return absl::OkStatus();
}

// What both directions share; the arguments have equal names in both.
template <typename Args>
absl::Status CheckInputs(const Exec& exec, const Args& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "q", args.q, 3));
  const DType dtype = args.q.dtype();
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "q", args.q, dtype, {kAnyDim, kAnyDim, kAnyDim}));
  const int64_t num_tokens = args.q.dim(0);
  const int64_t num_heads = args.q.dim(1);
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "k", args.k, dtype,
                                    {num_tokens, kAnyDim, args.q.dim(2)}));
  const int64_t num_kv_heads = args.k.dim(1);
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "v", args.v, dtype,
                                    {num_tokens, num_kv_heads, kAnyDim}));
  const int64_t v_dim = args.v.dim(2);
  if (num_kv_heads < 1 || num_heads < 1 || num_heads % num_kv_heads != 0 ||
      args.q.dim(2) < 1 || v_dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": q is ", args.q.DebugString(), ", k is ", args.k.DebugString(),
        ", v is ", args.v.DebugString(),
        "; widths are at least 1 and the key heads divide the query heads"));
  }
  if (num_heads * std::max(args.q.dim(2), v_dim) >
      std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": a row of q or o, ", num_heads, " heads of ",
                     std::max(args.q.dim(2), v_dim), ", exceeds 2^31 - 1"));
  }
  CADRE_RETURN_IF_ERROR(CheckCuSeqlens(exec, kOp, args.cu_seqlens, num_tokens));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "o", args.o, dtype, {num_tokens, num_heads, v_dim}));
  CADRE_RETURN_IF_ERROR(CheckTensor(
      kOp, "lse", args.lse, ParamDType(exec, dtype), {num_tokens, num_heads}));
  if (args.selected.present() != args.num_valid.present()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": selected is ", args.selected.DebugString(), ", num_valid is ",
        args.num_valid.DebugString(), "; give both or neither"));
  }
  if (!args.selected.present()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "selected", args.selected, DType::kI32,
                                    {num_tokens, kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "num_valid", args.num_valid, DType::kI32, {num_tokens}));
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  return CheckSelectedValues(args.cu_seqlens, args.selected, args.num_valid);
}

}  // namespace

absl::Status AttentionForward(const Exec& exec,
                              const AttentionForwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, args));
  if (exec.backend == Backend::kCuda) {
    return AttentionForwardCuda ? AttentionForwardCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return AttentionForwardCpu(exec, args);
}

absl::Status AttentionBackward(const Exec& exec,
                               const AttentionBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckInputs(exec, args));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "do", args.d_o, args.o));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dq", args.dq, args.q));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dk", args.dk, args.k));
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dv", args.dv, args.v));
  if (exec.backend == Backend::kCuda) {
    return AttentionBackwardCuda ? AttentionBackwardCuda(exec, args)
                                 : NoCudaError(kOp);
  }
  return AttentionBackwardCpu(exec, args);
}

}  // namespace cadre
