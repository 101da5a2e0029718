#include "plan/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "plan/pass_memory.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The published shape of the 2.8T model: every number is the parser's default.
ModelSpec KimiK3() {
  auto spec = ParseModelSpec(
      R"({"model_type": "kimi_k3", "text_config": {"hidden_act": "situ"}})");
  EXPECT_OK(spec.status());
  return *std::move(spec);
}

LoraPlan Lora(const ModelSpec& model, std::vector<std::string> targets) {
  auto plan = PlanLora(model, {.rank = 16, .targets = std::move(targets)});
  EXPECT_OK(plan.status());
  return *std::move(plan);
}

MemoryRequest Request(const ModelSpec& model, const LoraPlan* lora, int world,
                      int S, int P, int64_t tokens) {
  return {.model = &model,
          .lora = lora,
          .mesh = {.world_size = world,
                   .fsdp_shard_group_size = S,
                   .expert_parallel_size = P},
          .tokens = tokens,
          .constants = DefaultConstants(MemoryBackend::kGpu, world)};
}

int64_t BytesOf(const MemoryBudget& budget,
                std::initializer_list<const char*> names) {
  int64_t bytes = 0;
  for (const char* name : names) bytes += budget.BytesOf(name);
  return bytes;
}

// Section 9.1 of the memory model: 128 ranks, S 16, P 64, 8192 tokens.
TEST(BudgetMemory, WorkedExampleOfTheLargestModel) {
  ModelSpec model = KimiK3();
  const LoraPlan lora = Lora(model, {"q_proj", "v_proj", "expert_gate"});
  EXPECT_NEAR(lora.num_parameters(), 55e6, 1e6);
  // The example leaves out the input of the norm behind the combine.
  for (BlockSpec& block : model.blocks) {
    if (auto* moe = std::get_if<MoeSpec>(&block.ffn)) moe->latent_norm = false;
  }
  MemoryRequest request = Request(model, &lora, 128, 16, 64, 8192);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  SCOPED_TRACE(RenderBudget(budget));
  EXPECT_NEAR(budget.BytesOf("expert weights"), 85.1e9, 0.05e9);
  EXPECT_NEAR(budget.BytesOf("dense weights"), 7.1e9, 0.05e9);
  // The example takes the head (2.35) and a mixer (0.88); the largest pair is
  // the embedding with the first block, which is dense and as large.
  EXPECT_NEAR(budget.BytesOf("gather buffers"), 2 * 2.35e9, 0.05e9);
  // Adapters pass through a buffer of 16 Mi elements and the slice of it.
  EXPECT_EQ(budget.BytesOf("reduce buffers"), 4 * (17 << 20));
  EXPECT_NEAR(BytesOf(budget, {"adapter weights", "adapter gradients",
                               "adapter optimizer state"}),
              0.4e9, 0.05e9);
  EXPECT_NEAR(budget.BytesOf("kept activations"), 11.9e9, 0.1e9);
  // 9.3 and what the example leaves out: shared expert 0.5, residual 0.23, and
  // 1.9 for outputs of experts and of their activation.
  EXPECT_NEAR(BytesOf(budget, {"live block", "dispatch buffers"}),
              9.3e9 + 2.7e9, 0.15e9);
  EXPECT_NEAR(budget.BytesOf("dispatch buffers"), 2.1e9, 0.05e9);
  EXPECT_NEAR(BytesOf(budget, {"logits", "runtime context"}), 3.3e9, 0.05e9);
  // About 120, the 3.1 that the example leaves out and 1.5 of that pair.
  EXPECT_NEAR(budget.total, 120e9 + 4.6e9, 1e9);
  EXPECT_OK(CheckFits(budget, 141'000'000'000));

  request.imbalance = 1.5;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget skewed, BudgetMemory(request));
  EXPECT_NEAR(skewed.total, 124e9 + 4.5e9, 1.5e9);

  // A spare slot on each rank: 6.1 GB.
  request.imbalance = 1.0;
  request.spare_slots_per_rank = 1;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget spare, BudgetMemory(request));
  EXPECT_NEAR(spare.total - budget.total, 6.1e9, 0.05e9);

  request.spare_slots_per_rank = 0;
  request.shard_experts_over_edp = true;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget sharded, BudgetMemory(request));
  EXPECT_NEAR(sharded.BytesOf("expert weights"), 42.5e9, 0.05e9);
}

TEST(BudgetMemory, QuantisedExpertsOfTheLargestModel) {
  ModelSpec model = KimiK3();
  const LoraPlan lora = Lora(model, {"q_proj", "v_proj", "expert_gate"});
  for (BlockSpec& block : model.blocks) {
    if (auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      moe->latent_norm = false;
      moe->storage = MoeSpec::Storage::kMxfp4;
    }
  }
  MemoryRequest request = Request(model, &lora, 128, 16, 64, 8192);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  EXPECT_NEAR(budget.BytesOf("expert weights"), 22.6e9, 0.1e9);
  EXPECT_NEAR(BytesOf(budget, {"logits", "runtime context", "dequantisation"}),
              5.2e9, 0.05e9);
  EXPECT_NEAR(budget.total, 60e9 + 4e9, 1.5e9);
  // The CPU backend reads them into f32.
  request.constants = DefaultConstants(MemoryBackend::kCpu, 128);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget cpu, BudgetMemory(request));
  EXPECT_NEAR(cpu.BytesOf("expert weights"), 2 * 85.1e9, 0.1e9);
  EXPECT_EQ(cpu.BytesOf("dequantisation"), 0);
}

TEST(BudgetMemory, FullTuningOfTheLargestModelIsRefused) {
  const ModelSpec model = KimiK3();
  MemoryRequest request = Request(model, nullptr, 128, 16, 64, 8192);
  request.shard_experts_over_edp = true;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  EXPECT_NEAR(BytesOf(budget, {"expert weights", "expert gradients",
                               "expert optimizer state"}),
              383e9, 0.5e9);
  EXPECT_THAT(
      CheckFits(budget, 141'000'000'000),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("\"expert optimizer state\" with 255 GB"),
                     HasSubstr("141 GB"), HasSubstr("lora"))));
  request.mesh = {.world_size = 1024,
                  .fsdp_shard_group_size = 128,
                  .expert_parallel_size = 128};
  ASSERT_OK_AND_ASSIGN(const MemoryBudget large, BudgetMemory(request));
  EXPECT_NEAR(BytesOf(large, {"expert weights", "expert gradients",
                              "expert optimizer state"}),
              48e9, 0.2e9);
  EXPECT_OK(CheckFits(large, 141'000'000'000));
}

// Section 9.2: one H200, 131,072 tokens.
TEST(BudgetMemory, WorkedExampleOfOneDevice) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model,
                       ParseModelSpec(R"({"model_type": "kimi_linear"})"));
  const LoraPlan lora = Lora(model, {"q_proj", "v_proj"});
  MemoryRequest request = Request(model, &lora, 1, 1, 1, 131072);
  request.constants.ffn_token_block = 16384;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  SCOPED_TRACE(RenderBudget(budget));
  EXPECT_NEAR(BytesOf(budget, {"dense weights", "expert weights"}), 98.2e9,
              0.1e9);
  // Block inputs 16.3, ids and weights of the router 0.16.
  EXPECT_NEAR(budget.BytesOf("kept activations"), 16.3e9 + 0.16e9, 0.1e9);
  // Live KDA 17.3 with residual gradients 1.2; the normed input 0.6.
  EXPECT_NEAR(budget.BytesOf("live block"), 17.3e9 + 1.2e9 + 0.6e9, 0.1e9);
  EXPECT_NEAR(BytesOf(budget, {"logits", "runtime context"}), 1.5e9, 0.05e9);
  EXPECT_NEAR(budget.total, 135e9, 1.5e9);
  EXPECT_OK(CheckFits(budget, 141'000'000'000));
  // It fits only with head groups, token blocks and chunks of logits.
  MemoryRequest plain = request;
  plain.constants.kda_head_group = 32;
  plain.constants.logits_rows = 131072;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget more, BudgetMemory(plain));
  EXPECT_FALSE(CheckFits(more, 141'000'000'000).ok());
  plain = request;
  plain.replayed_blocks = 0;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget kept, BudgetMemory(plain));
  EXPECT_THAT(CheckFits(kept, 141'000'000'000),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("\"kept activations\""),
                             HasSubstr("activation_checkpointing"))));
}

TEST(BudgetMemory, HeadsOf64CountTheCopiesOf128) {
  ModelSpec model = KimiK3();
  const LoraPlan lora = Lora(model, {"q_proj"});
  const auto live = [&](int64_t dim) {
    for (BlockSpec& block : model.blocks) {
      if (auto* kda = std::get_if<KdaSpec>(&block.mixer)) {
        kda->num_heads = 512;
        kda->head_dim = dim;
      }
    }
    const MemoryRequest request = Request(model, &lora, 128, 16, 64, 8192);
    const auto budget = BudgetMemory(request);
    EXPECT_OK(budget.status());
    return static_cast<double>(budget->BytesOf("live block")) / 8192;
  };
  // Per token 12 H d brought back by the replay and 16 H d beside it; the head
  // group's 17 d is that of 128, and nine tensors have 2 x 128 bytes a head.
  const double wide = live(128), narrow = live(64);
  EXPECT_NEAR(wide - narrow, (12 + 16) * 512 * 64 - 9 * 256 * 512, 1);
}

TEST(BudgetMemory, ADenseWorldHasNoExpertTerms) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelSpec(R"({
    "model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "moe_intermediate_size": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 128, "mlp_only_layers": [0, 1],
    "tie_word_embeddings": true})"));
  MemoryRequest request = Request(model, nullptr, 4, 2, 1, 64);
  request.constants = DefaultConstants(MemoryBackend::kCpu, 4);
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  for (const BudgetTerm& term : budget.terms) {
    EXPECT_THAT(term.name, ::testing::Not(HasSubstr("expert")));
  }
  // f32 weights are their own masters.
  EXPECT_EQ(budget.BytesOf("dense optimizer state"),
            2 * budget.BytesOf("dense weights"));
  EXPECT_EQ(budget.BytesOf("dense gradients"), budget.BytesOf("dense weights"));
  request.mesh.expert_parallel_size = 2;
  EXPECT_THAT(
      BudgetMemory(request),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no experts")));
  request.mesh = {.world_size = 4, .fsdp_shard_group_size = 3};
  EXPECT_THAT(BudgetMemory(request),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// What the CPU engine takes, not the tables of the GPU's kernels.
TEST(BudgetMemory, OnTheCpuActivationsAreThoseOfTheArenas) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModelSpec(R"({
    "model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "moe_intermediate_size": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 128})"));
  MemoryRequest request = Request(model, nullptr, 1, 1, 1, 64);
  request.constants = DefaultConstants(MemoryBackend::kCpu, 1);
  request.imbalance = 1.5;  // of no effect where all experts are
  request.replayed_blocks = 0;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget budget, BudgetMemory(request));
  const PassMemory pass =
      MeasurePass({.model = &model, .tokens = 64, .rows = {.pairs = 2 * 64}});
  EXPECT_EQ(budget.BytesOf("kept activations"), pass.kept + pass.saved);
  EXPECT_EQ(budget.BytesOf("live block"), pass.temporary);
  EXPECT_EQ(budget.BytesOf("logits"), 0);  // among the temporaries
}

TEST(Activations, SparseIndicesTakeTheSmallestEncoding) {
  const IndexerSpec indexer = {.topk = 2048};
  EXPECT_EQ(SparseIndexBytes(indexer, 8192), 1024);
  EXPECT_EQ(SparseIndexBytes(indexer, 32768), 4096);
  EXPECT_EQ(SparseIndexBytes(indexer, 65536), 4096);
  EXPECT_EQ(SparseIndexBytes(indexer, 65537), 8192);
}

TEST(HumanBytes, HasThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(9994), "9.99 kB");
  EXPECT_EQ(HumanBytes(85'080'000'000), "85.1 GB");
  EXPECT_EQ(HumanBytes(999'600'000), "1.00 GB");
  EXPECT_EQ(HumanBytes(141'000'000'000), "141 GB");
}

}  // namespace
}  // namespace cadre
