// Experts spread over ranks against one rank that holds them all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <variant>

#include "plan/capacity.h"
#include "worker/model/tiny_models.h"
#include "worker/moe/link_tiers.h"
#include "worker/moe/rank_runs.h"

namespace cadre::testing {
namespace {

// In f64, so that nothing hides behind rounding.
constexpr double kTolerance = 1e-10;

std::vector<Batch> Batches(const ModelSpec& spec,
                           const std::vector<std::vector<int>>& lengths) {
  std::vector<Batch> out;
  for (size_t r = 0; r < lengths.size(); ++r) {
    out.push_back(RandomBatch(spec, lengths[r], /*padding=*/static_cast<int>(r),
                              /*seed=*/10 + r));
  }
  return out;
}

void ExpectSame(const RunResult& spread, const RunResult& alone) {
  EXPECT_NEAR(spread.loss, alone.loss, kTolerance * std::abs(alone.loss));
  EXPECT_NEAR(spread.aux_loss, alone.aux_loss, kTolerance * alone.aux_loss);
  EXPECT_NEAR(spread.norm, alone.norm, kTolerance * alone.norm);
  EXPECT_LT(GradientDistance(spread, alone), kTolerance);
}

// The experts of every layer, or what every layer of a tiny model has.
void ForEachMoe(ModelSpec* spec, const std::function<void(MoeSpec*)>& change) {
  for (BlockSpec& block : spec->blocks) {
    if (auto* moe = std::get_if<MoeSpec>(&block.ffn)) change(moe);
  }
}

class ExpertParallelTest
    : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  ModelSpec spec() const { return TinyModelNamed(std::get<0>(GetParam())); }
  RunOptions options() const {
    return {.lora = std::get<1>(GetParam()), .model = {.dtype = DType::kF64}};
  }
};

TEST_P(ExpertParallelTest, EqualsOneRank) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    std::vector<std::vector<int>> lengths = {{5, 4}, {7}, {2, 3, 1}, {6}};
    lengths.resize(ranks);
    const std::vector<Batch> batches = Batches(spec(), lengths);
    const RunResult alone = RunAlone(spec(), options(), batches);
    ExpectSame(RunOnRanks(spec(), options(), InOrder(spec(), ranks), batches),
               alone);
  }
}

TEST_P(ExpertParallelTest, EqualsOneRankWithReplicasAndRecomputation) {
  const std::vector<Batch> batches =
      Batches(spec(), {{5, 4}, {7}, {2, 3}, {6}});
  const RunResult alone = RunAlone(spec(), options(), batches);
  RunOptions spread = options();
  spread.model.replayed_blocks = kAllBlocks;
  spread.model.dispatch_chunks = 2;
  {
    SCOPED_TRACE("two groups of two");
    ExpectSame(RunOnRanks(spec(), spread, InOrder(spec(), 2), batches), alone);
  }
  SCOPED_TRACE("spare slots");
  ExpectSame(RunOnRanks(spec(), spread, WithSpares(spec(), 4, 1), batches),
             alone);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExpertParallelTest,
    ::testing::Combine(::testing::Values("Qwen3Moe", "Qwen3Next", "DeepSeekV3",
                                         "KimiLinear", "Glm5Next", "KimiK3"),
                       ::testing::Bool()),
    [](const auto& info) {
      return std::get<0>(info.param) +
             (std::get<1>(info.param) ? "Lora" : "Full");
    });

TEST(ExpertDispatchTest, SinglePrecisionAgreesToRounding) {
  const ModelSpec spec = TinyModelNamed("DeepSeekV3");
  const std::vector<Batch> batches = Batches(spec, {{5, 4}, {7}});
  const RunResult alone = RunAlone(spec, {}, batches);
  const RunResult spread = RunOnRanks(spec, {}, InOrder(spec, 2), batches);
  EXPECT_NEAR(spread.loss, alone.loss, 1e-6 * alone.loss);
  EXPECT_NEAR(spread.norm, alone.norm, 1e-5 * alone.norm);
  EXPECT_LT(GradientDistance(spread, alone), 1e-4);
}

TEST(ExpertDispatchTest, RanksWithoutTokensJoin) {
  const ModelSpec spec = TinyModelNamed("KimiK3");
  std::vector<Batch> batches = Batches(spec, {{6}, {}, {1}, {}});
  batches[3] = {.cu_seqlens = {0}};  // not even padding
  const RunResult alone =
      RunAlone(spec, {.model = {.dtype = DType::kF64}}, batches);
  for (const int chunks : {1, 2}) {
    SCOPED_TRACE(chunks);
    ExpectSame(RunOnRanks(spec,
                          {.model = {.dtype = DType::kF64,
                                     .dispatch_chunks = chunks,
                                     .overlap_dispatch = chunks == 2}},
                          InOrder(spec, 4), batches),
               alone);
  }
}

TEST(ExpertDispatchTest, AllTokensToOneExpert) {
  ModelSpec spec = TinyModelNamed("KimiLinear");
  ForEachMoe(&spec, [](MoeSpec* moe) { moe->top_k = 1; });
  RunOptions options = {.model = {.dtype = DType::kF64}};
  options.prepare = [](Model* model) {
    for (Parameter* p : model->parameters().all()) {
      if (p->name.find("e_score_correction_bias") == std::string::npos) {
        continue;
      }
      p->value.data<double>()[5] = 10;
    }
  };
  const std::vector<Batch> batches = Batches(spec, {{5}, {4, 3}, {2}, {6}});
  const RunResult alone = RunAlone(spec, options, batches);
  const RunResult spread = RunOnRanks(spec, options, InOrder(spec, 4), batches);
  ExpectSame(spread, alone);
  EXPECT_THAT(spread.ranks[1].expert_tokens[0],
              ::testing::ElementsAre(0, 0, 0, 0, 0, 7, 0, 0));
}

TEST(ExpertDispatchTest, MoreExpertsThanTokensAndUnevenSlots) {
  ModelSpec spec = TinyModelNamed("Qwen3Moe");
  ForEachMoe(&spec, [](MoeSpec* moe) { moe->num_experts = 22; });
  const std::vector<Batch> batches = Batches(spec, {{2}, {1, 2}, {2}, {2}});
  ExpectSame(RunOnRanks(spec, {.model = {.dtype = DType::kF64}},
                        InOrder(spec, 4), batches),
             RunAlone(spec, {.model = {.dtype = DType::kF64}}, batches));
}

// The router's share of the gradient of auxiliary losses: `RunAlone` sums
// sources in one batch, so the ranks must share their counts.
TEST(ExpertDispatchTest, ZLossIsOverAllRanks) {
  const ModelSpec spec = TinyModelNamed("Qwen3Next");
  const RunOptions options = {
      .model = {.dtype = DType::kF64,
                .moe = {.aux_loss_coef = 0.7, .z_loss_coef = 0.2}}};
  const std::vector<Batch> batches = Batches(spec, {{5}, {4, 3}});
  const RunResult alone = RunAlone(spec, options, batches);
  const RunResult spread = RunOnRanks(spec, options, InOrder(spec, 2), batches);
  ExpectSame(spread, alone);
  EXPECT_NEAR(spread.ranks[0].z_loss + spread.ranks[1].z_loss,
              alone.ranks[0].z_loss, 1e-10);
  EXPECT_GT(alone.ranks[0].z_loss, 0);
}

// Capacity is per source rank, so layouts of one world must agree.
TEST(ExpertDispatchTest, OverflowIsTheSameInEveryLayout) {
  const ModelSpec spec = TinyModelNamed("KimiLinear");
  const std::vector<Batch> batches = Batches(spec, {{12}, {9, 5}, {3}, {11}});
  int64_t top_k = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) top_k = moe->top_k;
  }
  for (const auto policy :
       {OverflowPolicy::kDropByWeight, OverflowPolicy::kDropByPosition,
        OverflowPolicy::kRemap}) {
    SCOPED_TRACE(static_cast<int>(policy));
    const RunOptions options = {
        .model = {.dtype = DType::kF64,
                  .replayed_blocks = kAllBlocks,
                  .moe = {.overflow = policy, .capacity_factor = 1.0}}};
    const RunResult one = RunOnRanks(spec, options, InOrder(spec, 1), batches);
    int64_t dropped = 0, moved = 0;
    for (size_t r = 0; r < batches.size(); ++r) {
      for (const MoeLayerCounts& layer : one.ranks[r].moe_counts) {
        EXPECT_EQ(layer.capacity,
                  ExpertCapacity({.tokens = batches[r].num_tokens(),
                                  .top_k = top_k,
                                  .num_experts = 8,
                                  .capacity_factor = 1.0})
                      .value());
        EXPECT_EQ(layer.routed, batches[r].num_real_tokens() * top_k);
        dropped += layer.dropped;
        for (int64_t n : layer.remapped) moved += n;
      }
    }
    if (policy == OverflowPolicy::kRemap) {
      EXPECT_GT(moved, 0);
      EXPECT_EQ(dropped, 0);
    } else {
      EXPECT_GT(dropped, 0);
    }
    for (const auto& placement :
         {InOrder(spec, 2), InOrder(spec, 4), WithSpares(spec, 4, 1)}) {
      const RunResult spread = RunOnRanks(spec, options, placement, batches);
      ExpectSame(spread, one);
      // What ranks compute is what was routed less what was dropped.
      for (size_t l = 0; l < one.ranks[0].moe_counts.size(); ++l) {
        int64_t computed = 0, admitted = 0;
        for (const ForwardResult& rank : spread.ranks) {
          computed += rank.traffic.computed_pairs[l];
          admitted += rank.moe_counts[l].routed - rank.moe_counts[l].dropped;
        }
        EXPECT_EQ(computed, admitted);
      }
      for (size_t r = 0; r < batches.size(); ++r) {
        for (size_t l = 0; l < one.ranks[r].moe_counts.size(); ++l) {
          const MoeLayerCounts& a = spread.ranks[r].moe_counts[l];
          const MoeLayerCounts& b = one.ranks[r].moe_counts[l];
          EXPECT_EQ(a.routed, b.routed);
          EXPECT_EQ(a.dropped, b.dropped);
          EXPECT_EQ(a.remapped, b.remapped);
          EXPECT_EQ(a.capacity, b.capacity);
        }
      }
    }
  }
}

TEST(ExpertDispatchTest, OverlapChangesNoBit) {
  for (const char* name : {"KimiK3", "Qwen3Next"}) {
    const ModelSpec spec = TinyModelNamed(name);
    const std::vector<Batch> batches = Batches(spec, {{9, 4}, {7, 2}});
    RunOptions options;
    options.model.dispatch_chunks = 2;
    const RunResult serial =
        RunOnRanks(spec, options, InOrder(spec, 2), batches);
    options.model.overlap_dispatch = true;
    const RunResult overlapped =
        RunOnRanks(spec, options, InOrder(spec, 2), batches);
    EXPECT_EQ(serial.loss, overlapped.loss);
    EXPECT_EQ(serial.aux_loss, overlapped.aux_loss);
    EXPECT_EQ(serial.gradients, overlapped.gradients);
  }
}

// Over all ranks.
ExpertTraffic Sum(const RunResult& run) {
  ExpertTraffic sum;
  for (const ForwardResult& rank : run.ranks) {
    sum.rows += rank.traffic.rows;
    sum.pairs += rank.traffic.pairs;
    sum.dispatch_bytes += rank.traffic.dispatch_bytes;
    sum.combine_bytes += rank.traffic.combine_bytes;
    sum.backward_dispatch_bytes += rank.traffic.backward_dispatch_bytes;
    sum.backward_combine_bytes += rank.traffic.backward_combine_bytes;
    sum.count_bytes += rank.traffic.count_bytes;
  }
  return sum;
}

TEST(ExpertDispatchTest, MovesAsManyBytesAsTheFormulaSays) {
  const ModelSpec spec = TinyModelNamed("KimiK3");
  int64_t layers = 0, experts = 8, latent = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      ++layers;
      latent = moe->latent_dim;
    }
  }
  // One rank per expert: a token goes to top_k ranks, each pair has its row.
  const std::vector<Batch> batches =
      Batches(spec, {{9}, {7, 2}, {5}, {5}, {5}, {5}, {5}, {5}});
  const RunResult run = RunOnRanks(spec, {}, InOrder(spec, experts), batches);
  int64_t routed = 0, at_home = 0;
  for (int r = 0; r < experts; ++r) {
    const ForwardResult& rank = run.ranks[r];
    for (const auto& layer : rank.expert_tokens) {
      for (int64_t n : layer) routed += n;
      at_home += layer[r];
    }
  }
  const ExpertTraffic sum = Sum(run);
  const int64_t rows = routed - at_home;
  EXPECT_EQ(sum.rows, rows);
  EXPECT_EQ(sum.pairs, rows);
  EXPECT_EQ(sum.dispatch_bytes, rows * (4 * latent + 8));
  EXPECT_EQ(sum.combine_bytes, rows * 4 * latent);
  EXPECT_EQ(sum.backward_dispatch_bytes, rows * 4 * latent);
  EXPECT_EQ(sum.backward_combine_bytes, rows * (4 * latent + 4));
  EXPECT_EQ(sum.count_bytes, layers * experts * (experts - 1) * 16);
}

// Two hosts of three and four ranks, and one rank that nobody knows.
TEST(ExpertDispatchTest, CountsHowFarBytesGo) {
  const ModelSpec spec = TinyModelNamed("KimiK3");
  int64_t layers = 0, latent = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      ++layers;
      latent = moe->latent_dim;
    }
  }
  constexpr int kRanks = 8;  // one per expert
  const std::vector<Batch> batches =
      Batches(spec, {{9}, {7, 2}, {5}, {5}, {3}, {5}, {}, {5}});
  RunOptions options;
  options.link_domains = {"a", "a", "a", "b", "b", "b", "b", ""};
  const RunResult run =
      RunOnRanks(spec, options, InOrder(spec, kRanks), batches);
  const auto tier_of = [](int from, int to) {
    if (from == to) return LinkTier::kSelf;
    if (from == 7 || to == 7) return LinkTier::kNetwork;
    return (from < 3) == (to < 3) ? LinkTier::kLink : LinkTier::kNetwork;
  };
  for (int r = 0; r < kRanks; ++r) {
    TierBytes dispatch{}, combine{};
    for (int peer = 0; peer < kRanks; ++peer) {
      const auto tier = static_cast<size_t>(tier_of(r, peer));
      int64_t out = 0, in = 0;  // rows that go there, that came from there
      for (const auto& layer : run.ranks[r].expert_tokens) out += layer[peer];
      for (const auto& layer : run.ranks[peer].expert_tokens) in += layer[r];
      // Forward: the row, slot and weight; backward: its gradient; two counts.
      dispatch[tier] += out * (4 * latent + 8 + 4 * latent) + layers * 16;
      // Forward: the result; backward: gradients of the row and the weight.
      combine[tier] += in * (4 * latent + 4 * latent + 4);
    }
    EXPECT_EQ(run.ranks[r].traffic.dispatch_tiers, dispatch) << "rank " << r;
    EXPECT_EQ(run.ranks[r].traffic.combine_tiers, combine) << "rank " << r;
  }
}

TEST(LinkTiersTest, AnUnknownDomainIsLikeNoOther) {
  using enum LinkTier;
  EXPECT_EQ(LinkTiers({"a", "b", "a", "b"}, {0, 1, 2, 3}, 2),
            (std::vector{kLink, kNetwork, kSelf, kNetwork}));
  // The second group of two of a world of four.
  EXPECT_EQ(LinkTiers({"a", "a", "a", "b"}, {2, 3}, 2),
            (std::vector{kSelf, kNetwork}));
  EXPECT_EQ(LinkTiers({"", "", "a"}, {0, 1, 2}, 0),
            (std::vector{kSelf, kNetwork, kNetwork}));
  EXPECT_EQ(LinkTiers({}, {0, 1}, 1), (std::vector{kNetwork, kSelf}));
}

// Five exchanges a layer: a block that is run again gets its rows, and sends
// back only what its backward pass reads (behind a latent space, or between
// hyper-connections).
TEST(ExpertDispatchTest, AReplaySendsRowsBackOnlyWhereTheyAreRead) {
  for (const char* name : {"Qwen3Moe", "DeepSeekV3", "Qwen3Next", "KimiLinear",
                           "Glm5Next", "KimiK3"}) {
    SCOPED_TRACE(name);
    const ModelSpec spec = TinyModelNamed(name);
    bool reads = std::holds_alternative<HyperConnections>(spec.residual);
    for (const BlockSpec& block : spec.blocks) {
      const auto* moe = std::get_if<MoeSpec>(&block.ffn);
      if (moe != nullptr) reads = reads || moe->latent_dim > 0;
    }
    const std::vector<Batch> batches = Batches(spec, {{9}, {7, 2}, {5, 3}, {}});
    RunOptions options;
    const RunResult kept = RunOnRanks(spec, options, InOrder(spec, 4), batches);
    options.model.replayed_blocks = kAllBlocks;
    const RunResult again =
        RunOnRanks(spec, options, InOrder(spec, 4), batches);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.aux_loss, kept.aux_loss);
    EXPECT_EQ(again.gradients, kept.gradients);
    const ExpertTraffic a = Sum(again), k = Sum(kept);
    EXPECT_GT(k.rows, 0);
    EXPECT_EQ(a.rows, k.rows);
    EXPECT_EQ(a.pairs, k.pairs);
    EXPECT_EQ(a.dispatch_bytes, 2 * k.dispatch_bytes);
    EXPECT_EQ(a.combine_bytes, (reads ? 2 : 1) * k.combine_bytes);
    EXPECT_EQ(a.backward_dispatch_bytes, k.backward_dispatch_bytes);
    EXPECT_EQ(a.backward_combine_bytes, k.backward_combine_bytes);
    EXPECT_EQ(a.count_bytes, k.count_bytes);
  }
}

}  // namespace
}  // namespace cadre::testing
