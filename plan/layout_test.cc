#include "plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kH200 = 141'000'000'000;

ModelSpec Parse(const char* config) {
  auto spec = ParseModelSpec(config);
  EXPECT_OK(spec.status());
  return *std::move(spec);
}
ModelSpec KimiK3() {
  return Parse(
      R"({"model_type": "kimi_k3", "text_config": {"hidden_act": "situ"}})");
}
ModelSpec KimiLinear() { return Parse(R"({"model_type": "kimi_linear"})"); }

LoraPlan Lora(const ModelSpec& model) {
  auto plan = PlanLora(model, {.rank = 16, .targets = {"q_proj", "v_proj"}});
  EXPECT_OK(plan.status());
  return *std::move(plan);
}

LayoutRequest On(const ModelSpec& model, const LoraPlan* lora, int world,
                 int64_t tokens) {
  return {.model = &model,
          .lora = lora,
          .world_size = world,
          .rank_bytes = kH200,
          .tokens = tokens,
          .constants = DefaultConstants(MemoryBackend::kGpu, world)};
}

TEST(ChooseLayout, WhatFitsOneDeviceIsNotSpread) {
  const ModelSpec model = KimiLinear();
  const LoraPlan lora = Lora(model);
  ASSERT_OK_AND_ASSIGN(const Layout layout,
                       ChooseLayout(On(model, &lora, 8, 2048)));
  EXPECT_EQ(layout.mesh, (MeshSpec{8, 1, 1}));
  EXPECT_EQ(layout.replayed_blocks, 0);
  EXPECT_EQ(layout.slots_per_rank, 256);
  EXPECT_EQ(layout.reasons.size(), 3u);
}

TEST(ChooseLayout, MoreTokensSpreadTheExpertsBeforeRecomputing) {
  const ModelSpec model = KimiLinear();
  const LoraPlan lora = Lora(model);
  ASSERT_OK_AND_ASSIGN(const Layout layout,
                       ChooseLayout(On(model, &lora, 8, 16384)));
  EXPECT_GT(layout.mesh.expert_parallel_size, 1);
  EXPECT_EQ(layout.mesh.fsdp_shard_group_size, 1);
  EXPECT_EQ(layout.replayed_blocks, 0);
  EXPECT_LE(layout.budget.total, kH200);
}

TEST(ChooseLayout, TheLargestModelNeeds64Ranks) {
  const ModelSpec model = KimiK3();
  const LoraPlan lora = Lora(model);
  LayoutRequest request = On(model, &lora, 128, 8192);
  ASSERT_OK_AND_ASSIGN(const Layout layout, ChooseLayout(request));
  EXPECT_GE(layout.mesh.expert_parallel_size, 64);
  EXPECT_GT(layout.mesh.fsdp_shard_group_size, 1);
  EXPECT_EQ(896 % layout.mesh.expert_parallel_size, 0);
  EXPECT_LE(layout.budget.total, kH200);
  // What the user fixed stays.
  request.fsdp_shard_group_size = 16;
  request.expert_parallel_size = 64;
  request.replayed_blocks = kAllBlocks;
  ASSERT_OK_AND_ASSIGN(const Layout fixed, ChooseLayout(request));
  EXPECT_EQ(fixed.mesh, (MeshSpec{128, 16, 64}));
  EXPECT_EQ(fixed.slots_per_rank, 14);
  EXPECT_STREQ(fixed.recompute, "full");
  EXPECT_TRUE(fixed.reasons.empty());

  request = On(model, &lora, 16, 8192);
  EXPECT_THAT(
      ChooseLayout(request),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("even with"), HasSubstr("\"expert weights\""))));
  request.rank_bytes_assumed = true;
  ASSERT_OK_AND_ASSIGN(const Layout least, ChooseLayout(request));
  EXPECT_EQ(least.mesh, (MeshSpec{16, 16, 16}));
  EXPECT_STREQ(least.recompute, "full");
  EXPECT_THAT(least.reasons[0], HasSubstr("nothing fits 141 GB (assumed)"));
}

TEST(ChooseLayout, FullTuningNamesTheOptimizer) {
  const ModelSpec model = KimiK3();
  EXPECT_THAT(
      ChooseLayout(On(model, nullptr, 128, 8192)),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("\"expert")));
}

TEST(ChooseLayout, StaysInsideALinkDomain) {
  const ModelSpec model = KimiLinear();
  LayoutRequest request = On(model, nullptr, 32, 4096);
  request.domain_size = 8;
  ASSERT_OK_AND_ASSIGN(const Layout near, ChooseLayout(request));
  EXPECT_LE(near.mesh.expert_parallel_size, 8);
  EXPECT_LE(near.mesh.fsdp_shard_group_size, 8);
}

TEST(ChooseLayout, RefusesSizesThatDoNotDivide) {
  const ModelSpec model = KimiLinear();
  const LoraPlan lora = Lora(model);
  LayoutRequest request = On(model, &lora, 12, 2048);
  request.expert_parallel_size = 5;
  EXPECT_THAT(ChooseLayout(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nearest: 4 or 6")));
  request.expert_parallel_size = 3;
  EXPECT_THAT(ChooseLayout(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("256 expert slots")));
}

TEST(ChooseReplayedBlocks, AsFewAsFit) {
  const ModelSpec model = KimiLinear();
  const LoraPlan lora = Lora(model);
  MemoryRequest request = {
      .model = &model,
      .lora = &lora,
      .mesh = {1, 1, 1},
      .tokens = 8192,
      .constants = DefaultConstants(MemoryBackend::kGpu, 1)};
  const int blocks = static_cast<int>(model.blocks.size());
  constexpr int64_t kRoom = 120'000'000'000;
  ASSERT_OK_AND_ASSIGN(const int some, ChooseReplayedBlocks(request, kRoom));
  EXPECT_GT(some, 0);
  EXPECT_LT(some, blocks);
  request.replayed_blocks = some;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget fits, BudgetMemory(request));
  EXPECT_LE(fits.total, kRoom);
  request.replayed_blocks = some - 1;
  ASSERT_OK_AND_ASSIGN(const MemoryBudget over, BudgetMemory(request));
  EXPECT_GT(over.total, kRoom);

  ASSERT_OK_AND_ASSIGN(const int none,
                       ChooseReplayedBlocks(request, 100 * kH200));
  EXPECT_EQ(none, 0);
  ASSERT_OK_AND_ASSIGN(const int all,
                       ChooseReplayedBlocks(request, kH200 / 100));
  EXPECT_EQ(all, blocks);
}

}  // namespace
}  // namespace cadre
