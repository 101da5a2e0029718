#include "kernels/kda/kda.h"
#include "kernels/linear_attention/generic.h"
#include "kernels/linear_attention/pad_run.cuh"
#include "kernels/linear_attention/run.cuh"

namespace cadre {
namespace {

using linear_attention::DeltaKernels;
using linear_attention::FinishOutput;
using linear_attention::kLog2E;
using linear_attention::Pointer;
using linear_attention::Problem;
using linear_attention::ScanOutput;

constexpr char kOp[] = "kda";

Problem Describe(const KdaInputs& in) {
  Problem p{};
  p.q = Pointer<uint16_t>(in.q);
  p.k = Pointer<uint16_t>(in.k);
  p.v = Pointer<uint16_t>(in.v);
  p.z = Pointer<uint16_t>(in.z);
  p.beta = Pointer<float>(in.beta);
  p.a_log = Pointer<float>(in.a_log);
  p.dt_bias = Pointer<float>(in.dt_bias);
  p.cu_seqlens = Pointer<int32_t>(in.cu_seqlens);
  p.initial_state = Pointer<float>(in.initial_state);
  p.tokens = static_cast<int>(in.q.dim(0));
  p.heads = p.key_heads = static_cast<int>(in.q.dim(1));
  p.docs = static_cast<int>(in.cu_seqlens.dim(0)) - 1;
  p.bounded = in.lower_bound.has_value();
  p.bound = static_cast<float>(in.lower_bound.value_or(0)) * kLog2E;
  return p;
}

// Every dtype and width that the chunked kernels do not take.
linear_attention::GenericInputs Generic(const KdaInputs& in) {
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .z = in.z,
          .beta = in.beta,
          .a_log = in.a_log,
          .dt_bias = in.dt_bias,
          .cu_seqlens = in.cu_seqlens,
          .initial_state = in.initial_state,
          .bounded = in.lower_bound.has_value(),
          .bound = static_cast<float>(in.lower_bound.value_or(0))};
}

}  // namespace

absl::Status KdaForwardCuda(const Exec& exec, const KdaForwardArgs& args) {
  const KdaInputs& in = args.in;
  const DeltaKernels kernels = linear_attention::KernelsFor(in.q, in.v);
  if (kernels == DeltaKernels::kGeneric) {
    return linear_attention::GenericForward(kOp, exec, Generic(in), args.o,
                                            args.final_state);
  }
  const Problem p = Describe(in);
  const ScanOutput out{.o = Pointer<uint16_t>(args.o),
                       .final_state = Pointer<float>(args.final_state),
                       .d_initial_state = nullptr};
  if (kernels == DeltaKernels::kPadded) {
    return linear_attention::RunPaddedForward<false>(kOp, exec, p, out, in.q,
                                                     in.v, args.workspace);
  }
  CADRE_RETURN_IF_ERROR(linear_attention::CheckDims(kOp, in.q, in.v));
  return linear_attention::RunForward<false>(kOp, exec, p, out, args.workspace);
}

absl::Status KdaBackwardCuda(const Exec& exec, const KdaBackwardArgs& args) {
  const KdaInputs& in = args.in;
  const DeltaKernels kernels = linear_attention::KernelsFor(in.q, in.v);
  if (kernels == DeltaKernels::kGeneric) {
    return linear_attention::GenericBackward(
        kOp, exec, Generic(in),
        {.d_o = args.d_o,
         .d_final_state = args.d_final_state,
         .dq = args.dq,
         .dk = args.dk,
         .dv = args.dv,
         .dz = args.dz,
         .dbeta = args.dbeta,
         .da_log = args.da_log,
         .ddt_bias = args.ddt_bias,
         .d_initial_state = args.d_initial_state},
        args.workspace);
  }
  Problem p = Describe(in);
  p.d_o = Pointer<uint16_t>(args.d_o);
  p.d_final_state = Pointer<float>(args.d_final_state);
  const ScanOutput scan{
      .o = nullptr,
      .final_state = nullptr,
      .d_initial_state = Pointer<float>(args.d_initial_state)};
  FinishOutput out{};
  out.dq = Pointer<uint16_t>(args.dq);
  out.dk = Pointer<uint16_t>(args.dk);
  out.dv = Pointer<uint16_t>(args.dv);
  out.dz = Pointer<uint16_t>(args.dz);
  out.dbeta = Pointer<float>(args.dbeta);
  float* const da_log = Pointer<float>(args.da_log);
  float* const ddt_bias = Pointer<float>(args.ddt_bias);
  if (kernels == DeltaKernels::kPadded) {
    return linear_attention::RunPaddedBackward<false>(
        kOp, exec, p, scan, out, da_log, ddt_bias, in.q, in.v, args.workspace);
  }
  CADRE_RETURN_IF_ERROR(linear_attention::CheckDims(kOp, in.q, in.v));
  return linear_attention::RunBackward<false>(kOp, exec, p, scan, out, da_log,
                                              ddt_bias, args.workspace);
}

}  // namespace cadre
