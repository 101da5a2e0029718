#include "kernels/hyper_connection/hyper_connection.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// hyper_connection_read_cpu.cc
absl::Status HyperConnectionReadCpu(const Exec& exec,
                                    const HyperConnectionReadArgs&);
absl::Status HyperConnectionReadBackwardCpu(
    const Exec& exec, const HyperConnectionReadBackwardArgs&);
// hyper_connection_cpu.cc
absl::Status HyperConnectionWriteCpu(const Exec& exec,
                                     const HyperConnectionWriteArgs&);
absl::Status HyperConnectionWriteBackwardCpu(
    const Exec& exec, const HyperConnectionWriteBackwardArgs&);
absl::Status StreamsBroadcastCpu(const Exec& exec, const StreamsArgs&);
absl::Status StreamsSumCpu(const Exec& exec, const StreamsArgs&);
CADRE_CUDA_IMPL absl::Status HyperConnectionReadCuda(
    const Exec& exec, const HyperConnectionReadArgs&);
CADRE_CUDA_IMPL absl::Status HyperConnectionReadBackwardCuda(
    const Exec& exec, const HyperConnectionReadBackwardArgs&);
CADRE_CUDA_IMPL absl::Status HyperConnectionWriteCuda(
    const Exec& exec, const HyperConnectionWriteArgs&);
CADRE_CUDA_IMPL absl::Status HyperConnectionWriteBackwardCuda(
    const Exec& exec, const HyperConnectionWriteBackwardArgs&);
CADRE_CUDA_IMPL absl::Status StreamsBroadcastCuda(const Exec& exec,
                                                  const StreamsArgs&);
CADRE_CUDA_IMPL absl::Status StreamsSumCuda(const Exec& exec,
                                            const StreamsArgs&);

namespace {

constexpr char kOp[] = "hyper_connection";
constexpr int64_t kMaxStreams = 8;
constexpr int64_t kMaxIterations = 64;

// Checks streams, and knows the sizes that follow from it.
struct Checker {
  Checker(const Exec& exec, const Tensor& streams) : streams(streams) {
    status = CheckActivation(exec, kOp, "streams", streams, 3);
    if (!status.ok()) return;
    status = CheckTensor(kOp, "streams", streams, streams.dtype(),
                         {kAnyDim, kAnyDim, kAnyDim});
    if (!status.ok()) return;
    num_tokens = streams.dim(0);
    num_streams = streams.dim(1);
    width = streams.dim(2);
    param = ParamDType(exec, streams.dtype());
    if (num_streams < 1 || num_streams > kMaxStreams || width < 1) {
      status = absl::InvalidArgumentError(absl::StrCat(
          kOp, ": streams is ", streams.DebugString(), ", expected 1 to ",
          kMaxStreams, " streams of at least one channel"));
    }
  }
  // The named tensor is one hidden row per token.
  void Row(absl::string_view name, const Tensor& tensor) {
    if (status.ok()) {
      status =
          CheckTensor(kOp, name, tensor, streams.dtype(), {num_tokens, width});
    }
  }
  void Streams(absl::string_view name, const Tensor& tensor) {
    if (status.ok()) status = CheckLike(kOp, name, tensor, streams);
  }
  void Param(absl::string_view name, const Tensor& tensor,
             std::initializer_list<int64_t> dims) {
    if (status.ok()) status = CheckTensor(kOp, name, tensor, param, dims);
  }
  void OptionalParam(absl::string_view name, const Tensor& tensor,
                     std::initializer_list<int64_t> dims) {
    if (tensor.present()) Param(name, tensor, dims);
  }
  void Mixes(const Tensor& post, absl::string_view post_name,
             const Tensor& comb, absl::string_view comb_name) {
    Param(post_name, post, {num_tokens, num_streams});
    Param(comb_name, comb, {num_tokens, num_streams, num_streams});
  }
  void Parameters(const HyperConnectionParameters& parameters) {
    Param("fn", parameters.fn, {num_logits(), num_streams * width});
    Param("base", parameters.base, {num_logits()});
    Param("scale", parameters.scale, {3});
    if (status.ok() && (parameters.sinkhorn_iters < 1 ||
                        parameters.sinkhorn_iters > kMaxIterations)) {
      status = absl::InvalidArgumentError(
          absl::StrCat(kOp, ": ", parameters.sinkhorn_iters,
                       " Sinkhorn iterations, expected 1 to ", kMaxIterations));
    }
  }
  int64_t num_logits() const { return (2 + num_streams) * num_streams; }

  const Tensor& streams;
  absl::Status status;
  int64_t num_tokens = 0, num_streams = 0, width = 0;
  DType param = DType::kF32;
};

}  // namespace

absl::Status HyperConnectionRead(const Exec& exec,
                                 const HyperConnectionReadArgs& args) {
  Checker check(exec, args.streams);
  check.Parameters(args.parameters);
  check.Row("x", args.x);
  check.Param("pre", args.pre, {check.num_tokens, check.num_streams});
  check.Mixes(args.post, "post", args.comb, "comb");
  check.Param("logits", args.logits, {check.num_tokens, check.num_logits()});
  check.Param("rstd", args.rstd, {check.num_tokens});
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda) {
    return HyperConnectionReadCuda ? HyperConnectionReadCuda(exec, args)
                                   : NoCudaError(kOp);
  }
  return HyperConnectionReadCpu(exec, args);
}

absl::Status HyperConnectionReadBackward(
    const Exec& exec, const HyperConnectionReadBackwardArgs& args) {
  Checker check(exec, args.streams);
  check.Parameters(args.parameters);
  check.Param("pre", args.pre, {check.num_tokens, check.num_streams});
  check.Param("post", args.post, {check.num_tokens, check.num_streams});
  check.Param("logits", args.logits, {check.num_tokens, check.num_logits()});
  check.Param("rstd", args.rstd, {check.num_tokens});
  check.Row("dx", args.dx);
  check.Mixes(args.dpost, "dpost", args.dcomb, "dcomb");
  check.Streams("dstreams", args.dstreams);
  check.Param("workspace", args.workspace,
              {check.num_tokens, check.num_logits()});
  check.OptionalParam("dfn", args.dfn,
                      {check.num_logits(), check.num_streams * check.width});
  check.OptionalParam("dbase", args.dbase, {check.num_logits()});
  check.OptionalParam("dscale", args.dscale, {3});
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda) {
    return HyperConnectionReadBackwardCuda
               ? HyperConnectionReadBackwardCuda(exec, args)
               : NoCudaError(kOp);
  }
  return HyperConnectionReadBackwardCpu(exec, args);
}

absl::Status HyperConnectionWrite(const Exec& exec,
                                  const HyperConnectionWriteArgs& args) {
  Checker check(exec, args.streams);
  check.Row("o", args.o);
  check.Mixes(args.post, "post", args.comb, "comb");
  check.Streams("streams_out", args.streams_out);
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda) {
    return HyperConnectionWriteCuda ? HyperConnectionWriteCuda(exec, args)
                                    : NoCudaError(kOp);
  }
  return HyperConnectionWriteCpu(exec, args);
}

absl::Status HyperConnectionWriteBackward(
    const Exec& exec, const HyperConnectionWriteBackwardArgs& args) {
  Checker check(exec, args.streams);
  check.Row("o", args.o);
  check.Mixes(args.post, "post", args.comb, "comb");
  check.Streams("dstreams_out", args.dstreams_out);
  check.Row("d_o", args.d_o);
  check.Mixes(args.dpost, "dpost", args.dcomb, "dcomb");
  check.Streams("dstreams", args.dstreams);
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda) {
    return HyperConnectionWriteBackwardCuda
               ? HyperConnectionWriteBackwardCuda(exec, args)
               : NoCudaError(kOp);
  }
  return HyperConnectionWriteBackwardCpu(exec, args);
}

absl::Status StreamsBroadcast(const Exec& exec, const StreamsArgs& args) {
  Checker check(exec, args.streams);
  check.Row("x", args.x);
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda) {
    return StreamsBroadcastCuda ? StreamsBroadcastCuda(exec, args)
                                : NoCudaError(kOp);
  }
  return StreamsBroadcastCpu(exec, args);
}

absl::Status StreamsSum(const Exec& exec, const StreamsArgs& args) {
  Checker check(exec, args.streams);
  check.Row("x", args.x);
  CADRE_RETURN_IF_ERROR(check.status);
  if (exec.backend == Backend::kCuda)
    return StreamsSumCuda ? StreamsSumCuda(exec, args) : NoCudaError(kOp);
  return StreamsSumCpu(exec, args);
}

}  // namespace cadre
