// Routing, expert tables and the loss on the device against the CPU.

#include "absl/strings/str_cat.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cuda_test/twin.cuh"
#include "kernels/moe_permute/moe_permute.h"
#include "kernels/router/router.h"
#include "kernels/router/router_overflow.h"
#include "kernels/router/router_z_loss.h"

namespace cadre {
namespace {

using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class MoeCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(MoeCuda);

absl::Status First(std::initializer_list<absl::Status> all) {
  for (const absl::Status& status : all) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

struct RouterCase {
  int64_t experts, k;
  RouterOptions options;
};

TEST_P(MoeCuda, Router) {
  using Score = RouterOptions::Score;
  const std::vector<RouterCase> cases = {
      {4, 1, {}},
      {14, 14, {.score = Score::kSoftmax}},
      {112, 8, {.renormalize_eps = 1e-20, .scaling = 2.5}},
      {256, 8, {.num_groups = 8, .topk_groups = 4}},
      {512, 10, {.score = Score::kSoftmax, .renormalize = false}},
      {896, 16, {.score = Score::kSoftmax, .renormalize_eps = 1e-6}}};
  for (const RouterCase& c : cases) {
    Twins twins(GetParam());
    const int64_t tokens = 67;
    std::vector<int32_t> mask(tokens, 1);
    mask[5] = mask[66] = 0;
    Twin& logits = twins.Param({tokens, c.experts}, 2);
    Twin& bias = twins.Param({c.experts}, 0.2);
    Twin& real = twins.Table(mask);
    Twin& ids = twins.Out(DType::kI32, {tokens, c.k});
    Twin& weights = twins.ParamOut({tokens, c.k});
    Twin& counts = twins.Out(DType::kI64, {c.experts});
    Twin& dweights = twins.Param({tokens, c.k});
    Twin& dlogits = twins.Param({tokens, c.experts});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return First({RouterForward(exec, {.logits = view(logits),
                                             .correction_bias = view(bias),
                                             .mask = view(real),
                                             .options = c.options,
                                             .ids = view(ids),
                                             .weights = view(weights),
                                             .counts = view(counts)}),
                        RouterBackward(exec, {.logits = view(logits),
                                              .options = c.options,
                                              .ids = view(ids),
                                              .dweights = view(dweights),
                                              .dlogits = view(dlogits),
                                              .accumulate = true})});
        },
        {&ids, &weights, &counts, &dlogits}, {.f32 = 2e-6, .bf16 = 2e-6});
  }
}

TEST_P(MoeCuda, RouterTakesTheLowerOfEqualExperts) {
  Twins twins(GetParam());
  Twin& logits = twins.Zeros(DType::kF32, {3, 70});
  Twin& ids = twins.Out(DType::kI32, {3, 5});
  Twin& weights = twins.ParamOut({3, 5});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return RouterForward(exec, {.logits = view(logits),
                                    .ids = view(ids),
                                    .weights = view(weights)});
      },
      {&ids, &weights});
}

TEST_P(MoeCuda, RouterWeighsGivenExperts) {
  Twins twins(GetParam());
  Twin& logits = twins.Param({3, 70}, 2);
  Twin& ids = twins.Table({3, 69, 0, 5, 1, 64, 8, 7, 31}, {3, 3});
  Twin& weights = twins.ParamOut({3, 3});
  Twin& counts = twins.Out(DType::kI64, {70});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return RouterForward(exec, {.logits = view(logits),
                                    .ids = view(ids),
                                    .weights = view(weights),
                                    .counts = view(counts),
                                    .ids_given = true});
      },
      {&ids, &weights, &counts}, {.f32 = 2e-6, .bf16 = 2e-6});
}

TEST_P(MoeCuda, RouterZLoss) {
  for (const int64_t tokens : {0, 1, 333}) {
    Twins twins(GetParam());
    std::vector<int32_t> mask(tokens, 1);
    if (tokens > 2) mask[2] = 0;
    Twin& logits = twins.Param({tokens, 70}, 3);
    Twin& real = twins.Table(mask);
    Twin& sum = twins.Zeros(DType::kF64, {1});
    Twin& dlogits = twins.Param({tokens, 70}, 1e-3);
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return RouterZLoss(exec, {.logits = view(logits),
                                    .mask = view(real),
                                    .sum = view(sum),
                                    .coefficient = 1e-3,
                                    .dlogits = view(dlogits)});
        },
        {&sum, &dlogits}, {.f32 = 2e-6, .bf16 = 2e-6});
  }
}

struct OverflowCase {
  int64_t tokens, experts, k, capacity;
  RouterOptions options;
};

// Some experts are preferred by all, so that most policies move and drop.
TEST_P(MoeCuda, RouterOverflow) {
  using Score = RouterOptions::Score;
  const std::vector<OverflowCase> cases = {
      {0, 8, 2, 1, {}},
      {1, 8, 2, 1, {}},
      {4, 6, 6, 2, {.score = Score::kSoftmax}},
      {67, 14, 3, 14, {.score = Score::kSoftmax, .renormalize = false}},
      {67, 32, 8, 17, {.renormalize_eps = 1e-20, .scaling = 2.5}},
      {300, 64, 8, 38, {.num_groups = 8, .topk_groups = 3}},
      {1500, 64, 6, 141, {.score = Score::kSoftmax}},
      {1500, 70, 8, 400, {}},
      {700, 896, 16, 13, {}}};
  for (const OverflowCase& c : cases) {
    for (const OverflowPolicy policy :
         {OverflowPolicy::kDropByWeight, OverflowPolicy::kDropByPosition,
          OverflowPolicy::kRemap}) {
      SCOPED_TRACE(absl::StrCat(c.tokens, " tokens, ", c.experts,
                                " experts, policy ", static_cast<int>(policy)));
      Twins twins(GetParam());
      std::vector<int32_t> mask(c.tokens, 1);
      if (c.tokens > 5) mask[5] = 0;
      const int64_t bytes =
          RouterOverflowWorkspaceBytes(c.tokens, c.k, c.experts);
      Twin& logits = twins.Param({c.tokens, c.experts}, 1.5);
      Twin& bias = twins.Param({c.experts}, 0.4);
      Twin& real = twins.Table(mask);
      Twin& ids = twins.Out(DType::kI32, {c.tokens, c.k});
      Twin& weights = twins.ParamOut({c.tokens, c.k});
      Twin& routed = twins.Out(DType::kI32, {c.tokens, c.k});
      Twin& sum = twins.ParamOut({c.tokens});
      Twin& counts = twins.Out(DType::kI64, {kNumOverflowCounts});
      Twin& memory = twins.Out(DType::kI64, {bytes / 8 + 1});
      Twin& dweights = twins.Param({c.tokens, c.k});
      Twin& dlogits = twins.ParamOut({c.tokens, c.experts});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            return First(
                {RouterForward(exec, {.logits = view(logits),
                                      .correction_bias = view(bias),
                                      .mask = view(real),
                                      .options = c.options,
                                      .ids = view(ids),
                                      .weights = view(weights)}),
                 RouterOverflow(
                     exec, {.logits = view(logits),
                            .correction_bias = view(bias),
                            .options = c.options,
                            .policy = policy,
                            .capacity = c.capacity,
                            .ids = view(ids),
                            .weights = view(weights),
                            .routed_ids = view(routed),
                            .weight_sum = view(sum),
                            .counts = view(counts),
                            .workspace = Tensor(view(memory).raw(), DType::kU8,
                                                {bytes})}),
                 RouterOverflowBackward(exec, {.logits = view(logits),
                                               .options = c.options,
                                               .routed_ids = view(routed),
                                               .weight_sum = view(sum),
                                               .dweights = view(dweights),
                                               .dlogits = view(dlogits)})});
          },
          {&ids, &weights, &routed, &sum, &counts, &dweights, &dlogits},
          {.f32 = 5e-6, .bf16 = 5e-6});
    }
  }
}

TEST_P(MoeCuda, RouterAuxLoss) {
  Twins twins(GetParam());
  const int64_t tokens = 1000, experts = 70;
  Twin& logits = twins.Param({tokens, experts}, 2);
  Twin& counts = twins.Zeros(DType::kI64, {experts});
  Twin& prob_sum = twins.Zeros(DType::kF64, {experts});
  Twin& rows = twins.Zeros(DType::kI64, {1});
  Twin& loss = twins.Out(DType::kF64, {1});
  Twin& dlogits = twins.Param({tokens, experts}, 1e-4);
  twins.Check(
      [&](const Exec& exec, const View& view) {
        const RouterAuxStatistics statistics = {.counts = view(counts),
                                                .prob_sum = view(prob_sum),
                                                .num_rows = view(rows)};
        return First({RouterAuxAccumulate(exec, {.logits = view(logits),
                                                 .top_k = 8,
                                                 .statistics = statistics}),
                      RouterAuxLoss(exec, statistics, view(loss)),
                      RouterAuxBackward(exec, {.logits = view(logits),
                                               .statistics = statistics,
                                               .coefficient = 0.5,
                                               .dlogits = view(dlogits)})});
      },
      {&counts, &prob_sum, &rows, &loss, &dlogits},
      {.f32 = 2e-6, .bf16 = 2e-6});
}

TEST_P(MoeCuda, PermuteGatherCombine) {
  struct Case {
    int64_t tokens, k, experts, width;
  };
  for (const Case& c :
       {Case{0, 2, 4, 8}, Case{1, 1, 4, 5}, Case{300, 8, 256, 64},
        Case{2000, 4, 14, 40}, Case{700, 8, 1, 9}, Case{1500, 16, 896, 16}}) {
    Twins twins(GetParam());
    std::vector<int32_t> table(c.tokens * c.k);
    for (size_t i = 0; i < table.size(); ++i) {
      // Some pairs without a row; some experts without a token.
      table[i] = i % 7 == 3 ? -1 : static_cast<int32_t>(i * i * 31 % c.experts);
    }
    const int64_t pairs = c.tokens * c.k;
    Twin& ids = twins.Table(table, {c.tokens, c.k});
    Twin& offsets = twins.Out(DType::kI32, {c.experts + 1});
    Twin& source = twins.Out(DType::kI32, {pairs});
    Twin& row_of = twins.Out(DType::kI32, {c.tokens, c.k});
    Twin& x = twins.Act({c.tokens, c.width});
    Twin& weights = twins.Param({c.tokens, c.k});
    Twin& rows = twins.ActOut({pairs, c.width});
    Twin& y = twins.Act({c.tokens, c.width});
    Twin& dweights = twins.ParamOut({c.tokens, c.k});
    Twin& drows = twins.Act({pairs, c.width});  // rows, replaced
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return First(
              {MoePermute(exec, {.ids = view(ids),
                                 .offsets = view(offsets),
                                 .row_source = view(source),
                                 .row_of = view(row_of)}),
               MoeGather(exec, {.x = view(x),
                                .row_source = view(source),
                                .top_k = c.k,
                                .rows = view(rows)}),
               MoeCombine(exec, {.rows = view(drows),
                                 .row_of = view(row_of),
                                 .weights = view(weights),
                                 .y = view(y),
                                 .accumulate = true}),
               MoeCombineBackward(exec, {.dy = view(x),
                                         .row_source = view(source),
                                         .row_of = view(row_of),
                                         .weights = view(weights),
                                         .rows = view(drows),
                                         .drows = view(drows),
                                         .dweights = view(dweights)})});
        },
        {&offsets, &source, &row_of, &rows, &y, &drows, &dweights});
  }
}

TEST_P(MoeCuda, CrossEntropy) {
  for (const int64_t vocabulary : {1, 7, 1000, 50'021}) {
    Twins twins(GetParam());
    Twin& logits = twins.Act({6, vocabulary}, 4);
    const int32_t last = static_cast<int32_t>(vocabulary) - 1;
    Twin& targets =
        twins.Table({0, kIgnoreTarget, last, last / 2, last / 3, 0});
    Twin& loss = twins.Zeros(DType::kF64, {1});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return CrossEntropy(exec, {.logits = view(logits),
                                     .targets = view(targets),
                                     .loss_sum = view(loss),
                                     .gradient = true,
                                     .inv_count = 0.25});
        },
        {&logits, &loss});
  }
}

TEST_P(MoeCuda, LinearCrossEntropy) {
  for (const bool wide : {false, true}) {
    Twins twins(GetParam());
    const int64_t tokens = 45, hidden = 64, vocabulary = 1504;
    Twin& x = twins.Act({tokens, hidden});
    Twin& head = twins.Act({vocabulary, hidden}, 0.2);
    std::vector<int32_t> table;
    for (int64_t t = 0; t < tokens; ++t)
      table.push_back(t % 9 == 4 ? kIgnoreTarget : int32_t(t * 33));
    Twin& targets = twins.Table(table);
    Twin& narrow_space = twins.ActOut({16, vocabulary});
    Twin& wide_space = twins.ParamOut({16, vocabulary});
    Twin& loss = twins.Zeros(DType::kF64, {1});
    Twin& dx = twins.ActOut({tokens, hidden});
    Twin& dhead = twins.Zeros(DType::kF32, {vocabulary, hidden});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return LinearCrossEntropy(
              exec, {.x = view(x),
                     .head = view(head),
                     .targets = view(targets),
                     .workspace = view(wide ? wide_space : narrow_space),
                     .inv_count = 0.1,
                     .loss_sum = view(loss),
                     .dx = view(dx),
                     .dhead = view(dhead)});
        },
        {&loss, &dx, &dhead}, {.f32 = 2e-5, .bf16 = 1e-2});
  }
}

}  // namespace
}  // namespace cadre
