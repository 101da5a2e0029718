// The CUDA side of the ops, on the host: see host_twin.h. What an op's entry
// declares, it finds here.
#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gdn/gdn.h"
#include "kernels/gemm/gemm.h"
#include "kernels/glu/glu.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/kda/kda.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/layernorm/layernorm.h"
#include "kernels/moe_permute/moe_permute.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/router/router.h"
#include "kernels/short_conv/conv_front.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/sparse_index/sparse_index.h"
#include "tests/parity/host_twin.h"

namespace cadre {

using parity::OnHost;

// An op whose arguments `a` hold the tensors that follow.
#define CADRE_TWIN(Op, Args, ...)                                \
  absl::Status Op##Cuda(const Exec&, const Args& given) {        \
    Args a = given;                                              \
    return OnHost({__VA_ARGS__},                                 \
                  [&a](const Exec& cpu) { return Op(cpu, a); }); \
  }

CADRE_TWIN(AttentionForward, AttentionForwardArgs, &a.q, &a.k, &a.v, &a.o,
           &a.lse)
CADRE_TWIN(AttentionBackward, AttentionBackwardArgs, &a.q, &a.k, &a.v, &a.o,
           &a.lse, &a.d_o, &a.dq, &a.dk, &a.dv)
CADRE_TWIN(SigmoidGateBackward, SigmoidGateBackwardArgs, &a.x, &a.gate, &a.dy,
           &a.dx, &a.dgate)
CADRE_TWIN(CopyColumns, CopyColumnsArgs, &a.src, &a.dst)
CADRE_TWIN(Dropout, DropoutArgs, &a.x, &a.y)
CADRE_TWIN(EmbeddingForward, EmbeddingForwardArgs, &a.table, &a.y)
CADRE_TWIN(EmbeddingBackward, EmbeddingBackwardArgs, &a.dy, &a.dtable)
CADRE_TWIN(GatedRmsNormForward, GatedRmsNormForwardArgs, &a.x, &a.gate, &a.w,
           &a.y)
CADRE_TWIN(GatedRmsNormBackward, GatedRmsNormBackwardArgs, &a.x, &a.gate, &a.w,
           &a.dy, &a.dx, &a.dgate, &a.dw)
CADRE_TWIN(GdnForward, GdnForwardArgs, &a.in.q, &a.in.k, &a.in.v, &a.in.a,
           &a.in.beta, &a.o)
CADRE_TWIN(GdnBackward, GdnBackwardArgs, &a.in.q, &a.in.k, &a.in.v, &a.in.a,
           &a.in.beta, &a.d_o, &a.dq, &a.dk, &a.dv, &a.da, &a.dbeta)
CADRE_TWIN(KdaForward, KdaForwardArgs, &a.in.q, &a.in.k, &a.in.v, &a.in.z,
           &a.in.beta, &a.o)
CADRE_TWIN(KdaBackward, KdaBackwardArgs, &a.in.q, &a.in.k, &a.in.v, &a.in.z,
           &a.in.beta, &a.d_o, &a.dq, &a.dk, &a.dv, &a.dz, &a.dbeta)
CADRE_TWIN(GluForward, GluForwardArgs, &a.gate, &a.up, &a.gate_up, &a.h)
CADRE_TWIN(GluBackward, GluBackwardArgs, &a.gate, &a.up, &a.gate_up, &a.dh,
           &a.dgate, &a.dup, &a.dgate_up)
CADRE_TWIN(GroupedGemm, GroupedGemmArgs, &a.x, &a.w, &a.y)
CADRE_TWIN(HyperConnectionRead, HyperConnectionReadArgs, &a.streams, &a.x)
CADRE_TWIN(HyperConnectionReadBackward, HyperConnectionReadBackwardArgs,
           &a.streams, &a.dx, &a.dstreams)
CADRE_TWIN(HyperConnectionWrite, HyperConnectionWriteArgs, &a.streams, &a.o,
           &a.streams_out)
CADRE_TWIN(HyperConnectionWriteBackward, HyperConnectionWriteBackwardArgs,
           &a.streams, &a.o, &a.dstreams_out, &a.d_o, &a.dstreams)
CADRE_TWIN(StreamsBroadcast, StreamsArgs, &a.x, &a.streams)
CADRE_TWIN(StreamsSum, StreamsArgs, &a.x, &a.streams)
CADRE_TWIN(L2NormForward, L2NormForwardArgs, &a.x, &a.y)
CADRE_TWIN(L2NormBackward, L2NormBackwardArgs, &a.x, &a.dy, &a.dx)
CADRE_TWIN(LayerNormForward, LayerNormForwardArgs, &a.x, &a.w, &a.b, &a.y)
CADRE_TWIN(MoePermute, MoePermuteArgs, &a.ids)
CADRE_TWIN(MoeGather, MoeGatherArgs, &a.x, &a.rows)
CADRE_TWIN(MoeCombine, MoeCombineArgs, &a.rows, &a.weights, &a.y)
CADRE_TWIN(MoeCombineBackward, MoeCombineBackwardArgs, &a.dy, &a.weights,
           &a.rows, &a.drows, &a.dweights)
CADRE_TWIN(RmsNormForward, RmsNormForwardArgs, &a.x, &a.w, &a.y)
CADRE_TWIN(RmsNormBackward, RmsNormBackwardArgs, &a.x, &a.w, &a.dy, &a.dx,
           &a.dw)
CADRE_TWIN(RopeForward, RopeArgs, &a.x)
CADRE_TWIN(RopeBackward, RopeArgs, &a.x)
CADRE_TWIN(RouterForward, RouterForwardArgs, &a.logits, &a.weights)
CADRE_TWIN(RouterBackward, RouterBackwardArgs, &a.logits, &a.dweights,
           &a.dlogits)
CADRE_TWIN(RouterAuxAccumulate, RouterAuxAccumulateArgs, &a.logits)
CADRE_TWIN(RouterAuxBackward, RouterAuxBackwardArgs, &a.logits, &a.dlogits)
CADRE_TWIN(ShortConvForward, ShortConvForwardArgs, &a.x, &a.w, &a.y)
CADRE_TWIN(ShortConvBackward, ShortConvBackwardArgs, &a.x, &a.w, &a.dy, &a.dx,
           &a.dw)
CADRE_TWIN(SparseIndex, SparseIndexArgs, &a.q, &a.k, &a.head_weight,
           &a.pool_gate, &a.pool_ape)
CADRE_TWIN(SumOfSquares, SumOfSquaresArgs, &a.x)
CADRE_TWIN(CrossEntropy, CrossEntropyArgs, &a.logits)

#undef CADRE_TWIN

// Not in one launch, as on a GPU where heads are not 64 or 128 wide, such as
// those of the fixtures.
absl::StatusOr<bool> ConvFrontForwardCuda(const Exec&,
                                          const ConvFrontForwardArgs&) {
  return false;
}
absl::StatusOr<bool> ConvFrontBackwardCuda(const Exec&,
                                           const ConvFrontBackwardArgs&) {
  return false;
}

absl::Status RouterAuxLossCuda(const Exec&,
                               const RouterAuxStatistics& statistics,
                               const Tensor& loss) {
  return RouterAuxLoss(Exec(), statistics, loss);
}
absl::Status CastCuda(const Exec&, const Tensor& from, const Tensor& to) {
  Tensor a = from, b = to;
  return OnHost({&a, &b}, [&](const Exec& cpu) { return Cast(cpu, a, b); });
}
absl::Status AddInPlaceCuda(const Exec&, const Tensor& x, const Tensor& y) {
  Tensor a = x, b = y;
  return OnHost({&a, &b},
                [&](const Exec& cpu) { return AddInPlace(cpu, a, b); });
}
absl::Status SigmoidGateForwardCuda(const Exec&, const Tensor& x,
                                    const Tensor& gate, const Tensor& y) {
  Tensor a = x, b = gate, c = y;
  return OnHost({&a, &b, &c}, [&](const Exec& cpu) {
    return SigmoidGateForward(cpu, a, b, c);
  });
}

absl::Status GemmCuda(const Exec&, const GemmArgs& given) {
  GemmArgs a = given;
  const auto reach = [](const Tensor& t, int64_t pitch) {
    return t.dim(0) == 0 ? 0 : (t.dim(0) - 1) * pitch + t.dim(1);
  };
  return OnHost({{&a.a, reach(a.a, a.lda)},
                 {&a.b, reach(a.b, a.ldb)},
                 {&a.c, reach(a.c, a.ldc)}},
                [&](const Exec& cpu) { return Gemm(cpu, a); });
}

// The kernel also writes the narrow copy of what it updated.
absl::Status AdamWCuda(const Exec&, absl::Span<const AdamWArgs> given) {
  for (AdamWArgs one : given) {
    Tensor value = std::exchange(one.value, Tensor());
    const absl::Status status =
        OnHost({&one.p, &one.g, &value}, [&](const Exec& cpu) -> absl::Status {
          CADRE_RETURN_IF_ERROR(AdamW(cpu, {one}));
          return value.present() ? Cast(cpu, one.p, value) : absl::OkStatus();
        });
    CADRE_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Logits, and their gradient over them, have the type of the workspace.
absl::Status LinearCrossEntropyCuda(const Exec& exec,
                                    const LinearCrossEntropyArgs& a) {
  const int64_t tokens = a.x.dim(0), block = a.workspace.dim(0);
  for (int64_t begin = 0; begin < tokens; begin += block) {
    const int64_t end = std::min(tokens, begin + block);
    const Tensor x = a.x.Rows(begin, end);
    const Tensor logits = a.workspace.Rows(0, end - begin);
    CADRE_RETURN_IF_ERROR(
        Gemm(exec, {.a = x, .b = a.head, .c = logits, .trans_b = true}));
    if (a.logits.present()) {
      CADRE_RETURN_IF_ERROR(Cast(exec, logits, a.logits.Rows(begin, end)));
    }
    CADRE_RETURN_IF_ERROR(
        CrossEntropy(exec, {.logits = logits,
                            .targets = a.targets.Rows(begin, end),
                            .loss_sum = a.loss_sum,
                            .gradient = a.dx.present() || a.dhead.present(),
                            .inv_count = a.inv_count}));
    if (a.dx.present()) {
      CADRE_RETURN_IF_ERROR(
          Gemm(exec, {.a = logits, .b = a.head, .c = a.dx.Rows(begin, end)}));
    }
    if (a.dhead.present()) {
      CADRE_RETURN_IF_ERROR(Gemm(
          exec,
          {.a = logits, .b = x, .c = a.dhead, .trans_a = true, .beta = 1}));
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
