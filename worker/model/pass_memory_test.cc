// What the planner expects of a pass against what the arenas of a pass held.

#include "plan/pass_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "model/lora_targets.h"
#include "worker/model/model.h"
#include "worker/model/tiny_models.h"

namespace cadre::testing {
namespace {

class PassMemoryTest : public ::testing::TestWithParam<TinyModel> {};

TEST_P(PassMemoryTest, IsWhatAPassTakes) {
  const ModelSpec& spec = GetParam().spec;
  constexpr int kTokens = 300;
  int64_t top_k = 0;
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) top_k = moe->top_k;
  }
  LoraOptions dropping = AdaptEverything();
  dropping.dropout = 0.1;
  for (const std::optional<LoraOptions>& lora :
       {std::optional<LoraOptions>(), std::optional(AdaptEverything()),
        std::optional(dropping)}) {
    for (const int replayed : {0, 1, kAllBlocks}) {
      SCOPED_TRACE(absl::StrCat("lora ", lora.has_value(), ", dropout ",
                                lora ? lora->dropout : 0, ", replayed ",
                                replayed));
      ModelOptions options{.replayed_blocks = replayed};
      if (lora) {
        ASSERT_OK_AND_ASSIGN(options.lora, PlanLora(spec, *lora));
      }
      const std::optional<LoraPlan> plan = options.lora;
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Model> model,
                           Model::Create(spec, std::move(options)));
      Randomize(model.get(), 11);
      ASSERT_OK(model->ForwardBackward(RandomBatch(spec, {kTokens}, 0, 3), {})
                    .status());
      const PassMemory expected =
          MeasurePass({.model = &spec,
                       .lora = plan ? &*plan : nullptr,
                       .tokens = kTokens,
                       .replayed_blocks = replayed,
                       .rows = {.pairs = kTokens * top_k}});
      const auto measured =
          static_cast<double>(model->arena_stats().peak_bytes);
      EXPECT_NEAR(static_cast<double>(expected.total()), measured,
                  0.01 * measured)
          << "kept " << expected.kept << ", saved " << expected.saved
          << ", temporary " << expected.temporary;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PassMemoryTest, ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre::testing
