#include "model/lora_targets.h"

#include <cmath>
#include <map>
#include <set>

#include "base/status_matchers.h"
#include "model/peft_adapter.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::GoldenPath;
using ::cadre::testing::ReadFileOrDie;
using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelSpec GoldenSpec(const std::string& arch) {
  auto spec =
      ParseModelSpec(ReadFileOrDie(GoldenPath(arch, "model/config.json")));
  EXPECT_OK(spec);
  return *spec;
}

absl::StatusOr<LoraPlan> Plan(const std::string& arch,
                              std::vector<std::string> targets) {
  LoraOptions options;
  options.rank = 4;
  options.alpha = 8.0;
  options.targets = std::move(targets);
  return PlanLora(GoldenSpec(arch), options);
}

std::vector<std::string> Paths(const LoraPlan& plan) {
  std::vector<std::string> paths;
  for (const LoraModule& module : plan.modules) paths.push_back(module.path);
  return paths;
}

TEST(PlanLora, LastNamesMatchEveryLayerThatHasThem) {
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan,
                       Plan("kimi_linear", {"v_proj", "q_proj"}));
  EXPECT_THAT(Paths(plan), ElementsAre("model.layers.0.self_attn.q_proj",
                                       "model.layers.0.self_attn.v_proj",
                                       "model.layers.1.self_attn.q_proj",
                                       "model.layers.1.self_attn.v_proj",
                                       "model.layers.2.self_attn.q_proj",
                                       "model.layers.2.self_attn.v_proj",
                                       "model.layers.3.self_attn.q_proj"));
  EXPECT_EQ(plan.modules[6].out, 96);
  EXPECT_EQ(plan.modules[6].scale, 2.0);
  ASSERT_EQ(plan.matches.size(), 3u);  // v_proj: kda; q_proj: kda, mla
  EXPECT_EQ(plan.matches[0].target, "v_proj");
  EXPECT_EQ(plan.matches[0].num_modules, 3);
  EXPECT_EQ(plan.matches[2].layer_kind, "mla");
  EXPECT_THAT(plan.matches[2].layers, ElementsAre(3));
  EXPECT_THAT(plan.warnings,
              ElementsAre(AllOf(HasSubstr("v_proj"), HasSubstr("1 mla"))));
}

TEST(PlanLora, MatchesTheModulesOfTheReferenceRuns) {
  // The adapters that the reference made from the same target names.
  for (const char* arch : {"kimi_linear", "glm5_next", "qwen3_5_moe"}) {
    const ModelSpec spec = GoldenSpec(arch);
    ASSERT_OK_AND_ASSIGN(
        const PeftAdapter adapter,
        ReadPeftAdapter(GoldenPath(arch, "lora_attn_experts_init"), spec));
    LoraOptions options;
    options.rank = 4;
    options.alpha = 8.0;
    options.shared_gate_up = true;
    options.targets = {"q_proj",  "v_proj",    "o_proj", "gate_proj",
                       "up_proj", "down_proj", "experts"};
    ASSERT_OK_AND_ASSIGN(const LoraPlan plan, PlanLora(spec, options));
    EXPECT_EQ(Paths(plan), Paths(adapter.plan)) << arch;
    EXPECT_EQ(plan.num_parameters(), adapter.plan.num_parameters()) << arch;
  }
}

TEST(PlanLora, ExpertsHaveIndependentGateAndUp) {
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan, Plan("qwen3_moe", {"experts"}));
  ASSERT_EQ(plan.modules.size(), 6u);
  const LoraModule& gate = plan.modules[0];
  EXPECT_EQ(gate.path, "model.layers.0.mlp.experts.gate_proj");
  EXPECT_EQ(gate.kind, LoraModuleKind::kExpertGate);
  EXPECT_THAT(gate.a_shape(), ElementsAre(16, 4, 48));
  EXPECT_THAT(gate.b_shape(), ElementsAre(16, 20, 4));
  EXPECT_EQ(gate.a_name(), "model.layers.0.mlp.experts.gate_proj.lora_A");
  EXPECT_EQ(plan.modules[2].kind, LoraModuleKind::kExpertDown);
  EXPECT_THAT(plan.modules[2].a_shape(), ElementsAre(16, 4, 20));
  ASSERT_OK_AND_ASSIGN(const LoraPlan half,
                       Plan("qwen3_moe", {"mlp.experts.gate_up_proj"}));
  EXPECT_EQ(half.modules.size(), 4u);
  ASSERT_OK_AND_ASSIGN(const LoraPlan router,
                       Plan("qwen3_moe", {"expert_gate"}));
  ASSERT_EQ(router.modules.size(), 2u);
  EXPECT_EQ(router.modules[0].path, "model.layers.0.mlp.gate");
  EXPECT_THAT(router.modules[0].b_shape(), ElementsAre(16, 4));
}

TEST(PlanLora, BareMlpNamesNeverMeanRoutedExperts) {
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan,
                       Plan("deepseek_v3", {"gate_proj", "down_proj"}));
  EXPECT_THAT(Paths(plan),
              ElementsAre("model.layers.0.mlp.gate_proj",
                          "model.layers.0.mlp.down_proj",
                          "model.layers.1.mlp.shared_experts.gate_proj",
                          "model.layers.1.mlp.shared_experts.down_proj",
                          "model.layers.2.mlp.shared_experts.gate_proj",
                          "model.layers.2.mlp.shared_experts.down_proj"));
  EXPECT_THAT(Plan("qwen3_moe", {"gate_proj"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("gate_proj"), HasSubstr("k_proj"),
                             HasSubstr("expert_gate"))));
}

TEST(PlanLora, UnderstandsPathsGlobsAndGroups) {
  ASSERT_OK_AND_ASSIGN(
      const LoraPlan path,
      Plan("deepseek_v32", {"model.layers.2.self_attn.o_proj"}));
  EXPECT_THAT(Paths(path), ElementsAre("model.layers.2.self_attn.o_proj"));
  ASSERT_OK_AND_ASSIGN(const LoraPlan glob,
                       Plan("deepseek_v32", {"model.layers.[01].*_b_proj"}));
  EXPECT_THAT(Paths(glob), ElementsAre("model.layers.0.self_attn.q_b_proj",
                                       "model.layers.0.self_attn.kv_b_proj",
                                       "model.layers.1.self_attn.q_b_proj",
                                       "model.layers.1.self_attn.kv_b_proj"));
  ASSERT_OK_AND_ASSIGN(const LoraPlan attention,
                       Plan("deepseek_v32", {"attention"}));
  EXPECT_EQ(attention.modules.size(), 15u);  // 5 per layer, no indexer
  ASSERT_OK_AND_ASSIGN(const LoraPlan all,
                       Plan("deepseek_v32", {"all-linear"}));
  // Attention, a dense MLP, two shared experts, two sets of experts.
  EXPECT_EQ(all.modules.size(), 15u + 3u + 6u + 6u);
  // Overlapping targets adapt a module once.
  ASSERT_OK_AND_ASSIGN(const LoraPlan twice,
                       Plan("deepseek_v32", {"attention", "o_proj", "o_proj"}));
  EXPECT_EQ(twice.modules.size(), 15u);
}

TEST(PlanLora, RefusesIndexersUnknownNamesAndBadNumbers) {
  for (const char* target :
       {"indexer.wk", "wk", "model.layers.0.self_attn.indexer.wq_b",
        "weights_proj", "indexer.*"}) {
    EXPECT_THAT(
        Plan("glm_moe_dsa", {target}).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no gradient")))
        << target;
  }
  EXPECT_THAT(Plan("glm_moe_dsa", {"q_a_proj", "qproj"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"qproj\""), HasSubstr("q_b_proj"))));
  EXPECT_THAT(Plan("glm_moe_dsa", {"lm_head"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Plan("glm_moe_dsa", {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const ModelSpec spec = GoldenSpec("glm_moe_dsa");
  LoraOptions options;
  options.targets = {"o_proj"};
  options.rank = 0;
  EXPECT_FALSE(PlanLora(spec, options).ok());
  options.rank = 4;
  options.alpha = 0.0;
  EXPECT_FALSE(PlanLora(spec, options).ok());
  options.alpha = std::nan("");
  EXPECT_FALSE(PlanLora(spec, options).ok());
  options.alpha = 8.0;
  options.dropout = 1.0;
  EXPECT_FALSE(PlanLora(spec, options).ok());
  options.dropout = 0.0;
  options.rslora = true;
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan, PlanLora(spec, options));
  EXPECT_EQ(plan.modules[0].scale, 4.0);
}

TEST(LoraTargetNames, AreThoseOfTheDesign) {
  EXPECT_THAT(
      LoraTargetNames(GoldenSpec("kimi_linear")),
      ElementsAre("b_proj", "down_proj", "expert_gate", "experts", "f_a_proj",
                  "f_b_proj", "g_a_proj", "g_b_proj", "gate_proj", "k_proj",
                  "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_proj",
                  "up_proj", "v_proj"));
  EXPECT_THAT(LoraTargetNames(GoldenSpec("qwen3_moe")),
              ElementsAre("expert_gate", "experts", "k_proj", "o_proj",
                          "q_proj", "v_proj"));
  EXPECT_THAT(LoraTargetNames(GoldenSpec("qwen3_5_moe")),
              ElementsAre("down_proj", "expert_gate", "experts", "gate_proj",
                          "in_proj_a", "in_proj_b", "in_proj_qkv", "in_proj_z",
                          "k_proj", "o_proj", "out_proj", "q_proj",
                          "shared_expert_gate", "up_proj", "v_proj"));
}

}  // namespace
}  // namespace cadre
