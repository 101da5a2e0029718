// Gradients of whole tiny models against finite differences in float64, for
// every combination of parts. This is the only end-to-end check of what no
// fixture holds: kimi_k3, packing, padding, dropout, per-half expert adapters.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "model/lora_targets.h"
#include "worker/model/model.h"
#include "worker/model/tiny_models.h"

namespace cadre::testing {
namespace {

constexpr double kInvTargets = 1.0 / 15;
constexpr double kAuxWeight = 0.5;

class ModelGradientTest : public ::testing::TestWithParam<TinyModel> {
 protected:
  // Checks every trainable parameter. Two documents and padding.
  void Check(std::optional<LoraOptions> lora, bool checkpointing) {
    const ModelSpec& spec = GetParam().spec;
    ModelOptions options{.dtype = DType::kF64,
                         .replayed_blocks = checkpointing ? kAllBlocks : 0,
                         .dropout_seed = 5};
    if (lora) {
      ASSERT_OK_AND_ASSIGN(options.lora, PlanLora(spec, *lora));
    }
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Model> model,
                         Model::Create(spec, std::move(options)));
    Randomize(model.get(), 11);
    const Batch batch = RandomBatch(spec, {7, 10}, /*padding=*/2, 3);
    const LossScale scale{.inv_num_targets = kInvTargets,
                          .aux_weight = kAuxWeight,
                          .dropout_step = 9};

    const std::vector<Parameter*> trained = model->parameters().Trainable();
    ASSERT_FALSE(trained.empty());
    for (Parameter* p : trained) Clear(p->grad);
    ASSERT_OK_AND_ASSIGN(const ForwardResult first,
                         model->ForwardBackward(batch, scale));
    std::vector<TestTensor> gradients;
    for (Parameter* p : trained) gradients.push_back(CopyOf(p->grad));

    // The loss of a training pass: dropout, where there is some, is on.
    ForwardResult last;
    const auto loss = [&] {
      absl::StatusOr<ForwardResult> result =
          model->ForwardBackward(batch, scale);
      EXPECT_OK(result.status());
      last = *result;
      return last.loss_sum * kInvTargets +
             AuxCoefficient(spec) * kAuxWeight * last.aux_loss;
    };
    std::vector<GradientCheck> checks;
    for (size_t i = 0; i < trained.size(); ++i) {
      checks.push_back(
          {trained[i]->name, trained[i]->value, gradients[i].view()});
    }
    // Random tiny models are steep in places: a longer step leaves truncation.
    FiniteDifferenceOptions check_options{
        .directions = lora ? 3 : 8, .step = 1e-5, .tolerance = 1e-6};
    // A choice of experts that changes takes the loss a step.
    check_options.smooth = [&] {
      return last.expert_tokens == first.expert_tokens;
    };
    ExpectGradients(loss, checks, check_options);
  }

  static void Clear(const Tensor& t) {
    for (double& v : t.span<double>()) v = 0;
  }
  static TestTensor CopyOf(const Tensor& t) {
    TestTensor copy = TestTensor::Zeros(DType::kF64, {t.num_elements()});
    for (int64_t i = 0; i < t.num_elements(); ++i) copy.Set(i, At(t, i));
    return copy;
  }
};

TEST_P(ModelGradientTest, FullFineTuning) { Check({}, false); }

TEST_P(ModelGradientTest, AdaptersOnEverythingWithDropoutReplayed) {
  LoraOptions lora = AdaptEverything();
  lora.dropout = 0.25;
  Check(lora, /*checkpointing=*/true);
}

TEST_P(ModelGradientTest, ExpertAdaptersThatShareA) {
  LoraOptions lora = AdaptEverything();
  lora.shared_gate_up = true;
  lora.targets = {"experts", "expert_gate"};
  Check(lora, false);
}

INSTANTIATE_TEST_SUITE_P(All, ModelGradientTest,
                         ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre::testing
