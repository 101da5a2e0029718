#include "worker/model_flops.h"

#include <gtest/gtest.h>

#include <variant>

#include "model/lora_targets.h"
#include "model/tensor_names.h"
#include "worker/backend/peak_flops.h"
#include "worker/model/tiny_models.h"

namespace cadre {
namespace {

constexpr TuningOptions::Method kFull = TuningOptions::Method::kFull;

// Every parameter of the base.
double Parameters(const ModelSpec& spec) {
  double sum = 0.0;
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    if (tensor.role == LogicalTensor::Role::kBuffer) continue;
    sum += static_cast<double>(tensor.num_elements());
  }
  return sum;
}

TEST(ModelFlops, EveryParameterButTheEmbeddingCostsSixWhenAllExpertsAreActive) {
  for (testing::TinyModel& model : testing::TinyModels()) {
    SCOPED_TRACE(model.name);
    const double some = ModelFlopsPerToken(model.spec, {.method = kFull});
    bool has_experts = false;
    for (BlockSpec& block : model.spec.blocks) {
      auto* moe = std::get_if<MoeSpec>(&block.ffn);
      if (moe == nullptr) continue;
      has_experts = has_experts || moe->top_k < moe->num_experts;
      moe->top_k = moe->num_experts;
    }
    const double all = ModelFlopsPerToken(model.spec, {.method = kFull});
    const double embedding =
        model.spec.tie_word_embeddings
            ? 0.0
            : static_cast<double>(model.spec.vocab_size) *
                  static_cast<double>(model.spec.hidden_size);
    EXPECT_DOUBLE_EQ(all, 6 * (Parameters(model.spec) - embedding));
    EXPECT_EQ(some < all, has_experts);
  }
}

TEST(ModelFlops, FrozenParametersCostFour) {
  const ModelSpec spec = testing::TinyModels().front().spec;
  const double base = ModelFlopsPerToken(spec, {.method = kFull}) / 6;
  const TuningOptions lora{
      .lora_rank = 2, .lora_target_modules = {LoraTargetNames(spec).front()}};
  const double adapter = ModelFlopsPerToken(spec, lora) - 4 * base;
  TuningOptions wider = lora;
  wider.lora_rank = 4;
  EXPECT_GT(adapter, 0);
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(spec, wider) - 4 * base, 2 * adapter);
  EXPECT_EQ(ModelFlopsPerToken(spec, {.lora_target_modules = {"no_such"}}), 0);
}

TEST(PeakFlops, KnowsPartsAndInstructionSets) {
  EXPECT_DOUBLE_EQ(GpuPeakFlops("NVIDIA H200"), 989.4e12);
  EXPECT_DOUBLE_EQ(GpuPeakFlops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(GpuPeakFlops("some other GPU"), 0);
  EXPECT_DOUBLE_EQ(
      CpuPeakFlops("cpu MHz\t: 2000.0\nflags\t: fpu avx fma avx512f\n", 2),
      2 * 2e9 * 64);
  EXPECT_DOUBLE_EQ(CpuPeakFlops("cpu MHz\t: 1000.0\nflags\t: fpu avx\n", 1),
                   1e9 * 16);
  EXPECT_EQ(CpuPeakFlops("", 2), 0);
}

}  // namespace
}  // namespace cadre
