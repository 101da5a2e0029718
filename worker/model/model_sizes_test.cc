// Sizes that no published model and no fixture has (odd numbers of heads,
// widths that share no factor, lengths that fill no tile), and activations a
// thousand times too large.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/status_matchers.h"
#include "worker/model/model.h"
#include "worker/model/tiny_models.h"

namespace cadre::testing {
namespace {

// Draws sizes; the parts and their order stay those of the architecture.
class Sizes {
 public:
  explicit Sizes(uint64_t seed) : bits_(seed) {}

  ModelSpec Draw(ModelSpec spec) {
    spec.hidden_size = Of(5, 23);
    spec.vocab_size = Of(11, 47);
    const Shared s = {.heads = Of(1, 7),
                      .kv_heads = Of(1, 3),
                      .rope = 2 * Of(1, 4),
                      .latent = Of(3, 13),
                      .query_latent = Of(3, 13),
                      .topk = Of(1, 5)};
    for (BlockSpec& block : spec.blocks) {
      std::visit([&](auto& mixer) { Draw(s, mixer); }, block.mixer);
    }
    const int64_t width = Of(1, 15), shared = Of(1, 15), groups = Of(1, 3);
    const int64_t experts = groups * Of(2, 4);
    const int64_t latent = Of(2, 9);
    for (BlockSpec& block : spec.blocks) {
      if (auto* dense = std::get_if<DenseMlpSpec>(&block.ffn)) {
        dense->width = shared + 2;
        continue;
      }
      MoeSpec& moe = std::get<MoeSpec>(block.ffn);
      moe.expert_width = width;
      if (moe.shared_width > 0) moe.shared_width = shared;
      if (moe.latent_dim > 0) moe.latent_dim = latent;
      moe.num_experts = experts;
      moe.router.num_groups = 1;
      moe.router.topk_groups = 1;
      if (moe.router.score == RouterSpec::Score::kSigmoid) {
        moe.router.num_groups = groups;
        moe.router.topk_groups = std::max<int64_t>(1, groups - 1);
      }
      moe.top_k = std::min<int64_t>(
          3, experts / moe.router.num_groups * moe.router.topk_groups);
    }
    if (auto* hyper = std::get_if<HyperConnections>(&spec.residual)) {
      hyper->multiplicity = Of(1, 5);
    }
    if (auto* residual = std::get_if<AttentionResiduals>(&spec.residual)) {
      residual->block_size = Of(1, 4);
    }
    return spec;
  }

  std::vector<int> Lengths() {
    std::vector<int> lengths;
    for (int64_t n = Of(1, 4); n > 0; --n) {
      lengths.push_back(static_cast<int>(Of(1, 40)));
    }
    return lengths;
  }
  int Padding() { return static_cast<int>(Of(0, 5)); }

 private:
  struct Shared {
    int64_t heads, kv_heads, rope, latent, query_latent, topk;
  };

  int64_t Of(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(bits_);
  }

  void Draw(const Shared& s, KdaSpec& kda) {
    kda.num_heads = s.heads;
    kda.head_dim = s.latent;
    kda.conv_kernel = 2 + s.kv_heads;
  }
  void Draw(const Shared& s, GdnSpec& gdn) {
    gdn.num_key_heads = s.kv_heads;
    gdn.num_value_heads = s.kv_heads * (1 + s.heads % 3);
    gdn.key_head_dim = s.latent;
    gdn.value_head_dim = s.query_latent;
  }
  void Draw(const Shared& s, MlaSpec& mla) {
    mla.num_heads = s.heads;
    mla.kv_lora_rank = s.latent;
    if (mla.q_lora_rank > 0) mla.q_lora_rank = s.query_latent;
    mla.qk_nope_dim = s.topk + 2;
    mla.v_dim = s.kv_heads + 3;
    if (mla.qk_rope_dim > 0) mla.qk_rope_dim = s.rope;
    if (mla.rope) mla.rope->dim = s.rope;
    mla.softmax_scale =
        1 / std::sqrt(static_cast<double>(mla.qk_nope_dim + mla.qk_rope_dim));
    if (!mla.indexer) return;
    IndexerSpec& indexer = *mla.indexer;
    indexer.num_heads = s.kv_heads + 2;
    indexer.head_dim = s.rope + 3;
    if (indexer.kpool > 0) indexer.kpool = s.kv_heads + 1;
    indexer.topk = s.topk * std::max<int64_t>(indexer.kpool, 1);
    if (indexer.rope) indexer.rope->dim = s.rope;
  }
  void Draw(const Shared& s, GqaSpec& gqa) {
    gqa.num_kv_heads = s.kv_heads;
    gqa.num_heads = s.kv_heads * (1 + s.heads % 4);
    gqa.head_dim = s.rope + (gqa.output_gate ? 3 : 0);
    gqa.rope.dim = s.rope;
    gqa.softmax_scale = 1 / std::sqrt(static_cast<double>(gqa.head_dim));
  }

  std::mt19937_64 bits_;
};

class ModelSizesTest : public ::testing::TestWithParam<TinyModel> {
 protected:
  static std::unique_ptr<Model> NewModel(const ModelSpec& spec, DType dtype) {
    absl::StatusOr<std::unique_ptr<Model>> model =
        Model::Create(spec, {.dtype = dtype});
    EXPECT_OK(model.status());
    if (!model.ok()) return nullptr;
    Randomize(model->get(), 11);
    return *std::move(model);
  }
};

constexpr double kInvTargets = 0.1;

// float32 against float64, and float64 against finite differences along random
// directions through all parameters at once.
TEST_P(ModelSizesTest, AnySizesTrain) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Sizes sizes(seed);
    const ModelSpec spec = sizes.Draw(GetParam().spec);
    const std::vector<int> lengths = sizes.Lengths();
    Batch batch = RandomBatch(spec, lengths, sizes.Padding(), seed);
    // A padding token's look-up counts in the loss and has no gradient.
    std::replace(batch.ids.begin(), batch.ids.end(),
                 static_cast<int32_t>(spec.pad_token_id),
                 static_cast<int32_t>(spec.pad_token_id + 1));
    const auto exact = NewModel(spec, DType::kF64);
    const auto single = NewModel(spec, DType::kF32);
    ASSERT_NE(exact, nullptr);
    ASSERT_NE(single, nullptr);
    const LossScale scale{.inv_num_targets = kInvTargets};
    ASSERT_OK_AND_ASSIGN(const ForwardResult first,
                         exact->ForwardBackward(batch, scale));
    ASSERT_OK_AND_ASSIGN(const ForwardResult rounded,
                         single->ForwardBackward(batch, scale));
    ASSERT_EQ(rounded.expert_tokens, first.expert_tokens);
    EXPECT_NEAR(rounded.loss_sum, first.loss_sum,
                1e-5 * std::max(1.0, first.loss_sum));

    const std::vector<Parameter*> trained = exact->parameters().Trainable();
    double squares = 0, difference = 0;
    for (Parameter* p : trained) {
      const Tensor& ours = single->parameters().Find(p->name)->grad;
      for (int64_t i = 0; i < p->grad.num_elements(); ++i) {
        squares += At(p->grad, i) * At(p->grad, i);
        difference += std::pow(At(ours, i) - At(p->grad, i), 2);
      }
    }
    if (squares == 0) continue;  // documents of one token predict nothing
    // Random weights are steep: a wrong term shows as 1e-2 and more.
    EXPECT_LT(std::sqrt(difference / squares), 1e-3);

    std::vector<std::vector<double>> gradients;
    for (Parameter* p : trained) {
      const auto values = p->grad.span<double>();
      gradients.emplace_back(values.begin(), values.end());
    }
    const auto loss = [&] {
      const auto result = exact->Forward(batch, {});
      EXPECT_OK(result.status());
      return result->loss_sum * kInvTargets +
             AuxCoefficient(spec) * result->aux_loss;
    };
    // A direction that changes a selection is drawn anew.
    double error = 1;
    for (uint64_t draw = 0; draw < 4 && error > 1e-6; ++draw) {
      std::mt19937_64 bits(100 * seed + draw);
      std::normal_distribution<double> normal;
      constexpr double kStep = 3e-6;
      std::vector<std::vector<double>> direction;
      double expected = 0;
      for (size_t k = 0; k < trained.size(); ++k) {
        direction.emplace_back();
        for (double g : gradients[k]) {
          direction[k].push_back(normal(bits));
          expected += g * direction[k].back();
        }
      }
      const auto move = [&](double by) {
        for (size_t k = 0; k < trained.size(); ++k) {
          const auto values = trained[k]->value.span<double>();
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] += by * direction[k][i];
          }
        }
      };
      // Four points: free of the third derivative.
      double numeric = 0;
      for (const auto& [steps, weight] :
           {std::pair(1, 8.0), {-1, -8.0}, {2, -1.0}, {-2, 1.0}}) {
        move(steps * kStep);
        numeric += weight * loss() / (12 * kStep);
        move(-steps * kStep);
      }
      error = std::abs(numeric - expected) / std::sqrt(squares);
    }
    EXPECT_LE(error, 1e-6);
  }
}

// Residual streams of 1e3 in all channels, and of 1e4 in one, as trained models
// have them: nothing overflows, nothing becomes NaN, in either direction.
TEST_P(ModelSizesTest, MassiveActivationsStayFinite) {
  const ModelSpec& spec = GetParam().spec;
  const Batch batch = RandomBatch(spec, {37, 3, 1, 25}, 2, 3);
  for (const bool one_channel : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      const auto model = NewModel(spec, dtype);
      const Tensor embedding =
          model->parameters()
              .Find(spec.tensor_prefix + "embed_tokens.weight")
              ->value;
      double largest = 0;
      for (int64_t i = 0; i < embedding.num_elements(); ++i) {
        const bool chosen = !one_channel || i % spec.hidden_size == 1;
        const double value =
            At(embedding, i) * (chosen ? (one_channel ? 1e4 : 1e3) : 1);
        largest = std::max(largest, std::abs(value));
        if (dtype == DType::kF64) {
          embedding.data<double>()[i] = value;
        } else {
          embedding.data<float>()[i] = static_cast<float>(value);
        }
      }
      EXPECT_GT(largest, 1e3);
      ASSERT_OK_AND_ASSIGN(
          const ForwardResult result,
          model->ForwardBackward(batch, {.inv_num_targets = kInvTargets}));
      EXPECT_TRUE(std::isfinite(result.loss_sum));
      EXPECT_TRUE(std::isfinite(result.aux_loss));
      for (Parameter* p : model->parameters().Trainable()) {
        for (int64_t i = 0; i < p->grad.num_elements(); ++i) {
          ASSERT_TRUE(std::isfinite(At(p->grad, i))) << p->name << " " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelSizesTest, ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre::testing
