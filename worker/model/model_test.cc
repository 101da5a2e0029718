// What must hold for every model whatever its maths: packing, padding,
// replaying blocks, memory, adapters, counts.

#include "worker/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/thread_pool.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "model/lora_targets.h"
#include "worker/model/tiny_models.h"

namespace cadre::testing {
namespace {

using Gradients = std::map<std::string, std::vector<float>>;

struct Pass {
  ForwardResult result;
  std::vector<float> logits;
  Gradients gradients;
};

std::vector<float> Floats(const Tensor& t) {
  const auto values = t.span<float>();
  return {values.begin(), values.end()};
}

// |a - b| / |b|.
template <typename S>
double RelativeError(const std::vector<float>& a, const std::vector<S>& b) {
  double difference = 0, norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference +=
        std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

// What is added to a negated gradient afterwards leaves the difference.
double NormAndNegate(const Tensor& gradient) {
  double squares = 0;
  for (double& g : gradient.span<double>()) {
    squares += g * g;
    g = -g;
  }
  return std::sqrt(squares);
}

class ModelTest : public ::testing::TestWithParam<TinyModel> {
 protected:
  std::unique_ptr<Model> NewModel(ModelOptions options,
                                  std::optional<LoraOptions> lora = {}) {
    if (lora) {
      absl::StatusOr<LoraPlan> plan = PlanLora(spec_, *lora);
      EXPECT_OK(plan.status());
      options.lora = *plan;
    }
    absl::StatusOr<std::unique_ptr<Model>> model =
        Model::Create(spec_, std::move(options));
    EXPECT_OK(model.status());
    Randomize(model->get(), 11);
    return *std::move(model);
  }

  static void ZeroGradients(Model* model) {
    for (Parameter* p : model->parameters().Trainable()) {
      for (float& v : p->grad.span<float>()) v = 0;
    }
  }

  // Logits, loss and gradients of one batch.
  static Pass Run(Model* model, const Batch& batch,
                  const LossScale& scale = {}) {
    Pass pass;
    EXPECT_OK(
        model->Forward(batch, ForwardCapture{.logits = &pass.logits}).status());
    ZeroGradients(model);
    absl::StatusOr<ForwardResult> result = model->ForwardBackward(batch, scale);
    EXPECT_OK(result.status());
    pass.result = *result;
    for (Parameter* p : model->parameters().Trainable()) {
      pass.gradients[p->name] = Floats(p->grad);
    }
    return pass;
  }

  // Bit for bit, with the names of what differs.
  static void ExpectSameBits(const Gradients& a, const Gradients& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, values] : a) {
      ASSERT_TRUE(b.contains(name)) << name;
      const std::vector<float>& other = b.at(name);
      ASSERT_EQ(values.size(), other.size()) << name;
      EXPECT_EQ(std::memcmp(values.data(), other.data(),
                            values.size() * sizeof(float)),
                0)
          << name << " differs by " << RelativeError(values, other);
    }
  }

  // Loss, counts and the logits of the first `tokens` tokens, bit for bit.
  void ExpectSameRealTokens(const Pass& a, const Pass& b,
                            int64_t tokens) const {
    EXPECT_EQ(a.result.loss_sum, b.result.loss_sum);
    EXPECT_EQ(a.result.aux_loss, b.result.aux_loss);
    EXPECT_EQ(a.result.expert_tokens, b.result.expert_tokens);
    const size_t real = tokens * spec_.vocab_size;
    ASSERT_GE(a.logits.size(), real);
    ASSERT_GE(b.logits.size(), real);
    EXPECT_EQ(
        std::memcmp(a.logits.data(), b.logits.data(), real * sizeof(float)), 0);
  }

  // The auxiliary loss is a function of the whole batch, not a sum over
  // documents.
  void DropAuxLoss() {
    for (BlockSpec& block : spec_.blocks) {
      if (auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
        moe->router.aux_loss_coef = 0;
      }
    }
  }

  ModelSpec spec_ = GetParam().spec;
};

constexpr int kPackedLengths[] = {1, 3, 15, 17, 63, 65};

// One document of a packed batch as a batch of its own.
Batch DocumentOf(const Batch& packed, size_t d) {
  const int begin = packed.cu_seqlens[d], end = packed.cu_seqlens[d + 1];
  Batch out;
  out.ids.assign(packed.ids.begin() + begin, packed.ids.begin() + end);
  out.targets.assign(packed.targets.begin() + begin,
                     packed.targets.begin() + end);
  out.cu_seqlens = {0, end - begin};
  return out;
}

TEST_P(ModelTest, PackedDocumentsAreAsIfAlone) {
  DropAuxLoss();
  const std::unique_ptr<Model> model = NewModel({});
  const Batch packed = RandomBatch(
      spec_, {std::begin(kPackedLengths), std::end(kPackedLengths)}, 0, 3);
  const Pass together = Run(model.get(), packed);
  double loss = 0;
  std::vector<float> logits;
  std::map<std::string, std::vector<double>> gradients;
  for (size_t d = 0; d < std::size(kPackedLengths); ++d) {
    const Pass pass = Run(model.get(), DocumentOf(packed, d));
    loss += pass.result.loss_sum;
    logits.insert(logits.end(), pass.logits.begin(), pass.logits.end());
    for (const auto& [name, values] : pass.gradients) {
      std::vector<double>& sums = gradients[name];
      sums.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
    }
  }
  EXPECT_NEAR(together.result.loss_sum, loss, 1e-12 * loss);
  // Every position computes what it computes alone.
  EXPECT_EQ(together.logits, logits);
  // Sums over tokens are rounded once here and once per document there.
  for (const auto& [name, values] : together.gradients) {
    EXPECT_LT(RelativeError(values, gradients[name]), 1e-6) << name;
  }
}

// In float64, where rounding hides nothing: not even a position that does not
// restart, which changes only the float32 rounding of a rotation's angle.
TEST_P(ModelTest, PackedDocumentsTrainAsIfAlone) {
  DropAuxLoss();
  const std::unique_ptr<Model> model = NewModel({.dtype = DType::kF64});
  const std::vector<Parameter*> trained = model->parameters().Trainable();
  const auto run = [&](const Batch& batch) {
    absl::StatusOr<ForwardResult> result = model->ForwardBackward(batch, {});
    EXPECT_OK(result.status());
    return result->loss_sum;
  };
  // Gradients of the packed batch minus those of its documents.
  const Batch packed = RandomBatch(
      spec_, {std::begin(kPackedLengths), std::end(kPackedLengths)}, 0, 3);
  const double together = run(packed);
  std::vector<double> norms;
  for (Parameter* p : trained) norms.push_back(NormAndNegate(p->grad));
  double alone = 0;
  for (size_t d = 0; d < std::size(kPackedLengths); ++d) {
    alone += run(DocumentOf(packed, d));
  }
  EXPECT_NEAR(together, alone, 1e-12 * alone);
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_GT(norms[i], 0) << trained[i]->name;
    EXPECT_LT(NormAndNegate(trained[i]->grad), 1e-11 * norms[i])
        << trained[i]->name;
  }
}

TEST_P(ModelTest, EmptyDocumentsChangeNothing) {
  const std::unique_ptr<Model> model = NewModel({});
  Batch batch = RandomBatch(spec_, {9, 5}, 0, 3);
  const Pass without = Run(model.get(), batch);
  batch.cu_seqlens = {0, 0, 9, 9, 14, 14};
  const Pass with = Run(model.get(), batch);
  EXPECT_EQ(with.result.loss_sum, without.result.loss_sum);
  ExpectSameBits(with.gradients, without.gradients);
}

TEST_P(ModelTest, WhatPaddingHoldsChangesNoBit) {
  for (const bool adapters : {false, true}) {
    const std::unique_ptr<Model> model =
        NewModel({}, adapters ? std::optional(AdaptEverything())
                              : std::optional<LoraOptions>());
    Batch batch = RandomBatch(spec_, {13, 6}, /*padding=*/5, 3);
    const Pass zeros = Run(model.get(), batch);
    for (size_t t = 19; t < batch.ids.size(); ++t) {
      batch.ids[t] = static_cast<int32_t>(t) % 7 + 3;
    }
    const Pass others = Run(model.get(), batch);
    ExpectSameRealTokens(others, zeros, 19);
    ExpectSameBits(others.gradients, zeros.gradients);
  }
}

TEST_P(ModelTest, AppendedPaddingChangesNoBit) {
  const std::unique_ptr<Model> model = NewModel({});
  for (const int padding : {1, 5, 32}) {
    const Pass bare = Run(model.get(), RandomBatch(spec_, {13, 6, 50}, 0, 3));
    const Pass padded =
        Run(model.get(), RandomBatch(spec_, {13, 6, 50}, padding, 3));
    ExpectSameRealTokens(padded, bare, 69);
    ExpectSameBits(padded.gradients, bare.gradients);
  }
}

TEST_P(ModelTest, ReplayedBlocksGiveTheSameBits) {
  LoraOptions dropping = AdaptEverything();
  dropping.dropout = 0.3;
  for (const auto& lora :
       {std::optional<LoraOptions>(), std::optional(dropping)}) {
    const Batch batch = RandomBatch(spec_, {13, 20}, 3, 3);
    const Pass kept = Run(NewModel({}, lora).get(), batch);
    const Pass replayed =
        Run(NewModel({.replayed_blocks = kAllBlocks}, lora).get(), batch);
    EXPECT_EQ(replayed.result.loss_sum, kept.result.loss_sum);
    EXPECT_EQ(replayed.result.expert_tokens, kept.result.expert_tokens);
    ExpectSameBits(replayed.gradients, kept.gradients);
  }
}

TEST_P(ModelTest, NumberOfThreadsChangesNoBit) {
  const Batch batch = RandomBatch(spec_, {40, 33}, 3, 3);
  ThreadPool pool(3);
  const Pass one = Run(NewModel({}).get(), batch);
  const Pass three = Run(NewModel({.exec = {.pool = &pool}}).get(), batch);
  EXPECT_EQ(three.result.loss_sum, one.result.loss_sum);
  ExpectSameBits(three.gradients, one.gradients);
}

TEST_P(ModelTest, LaterStepsAllocateNothing) {
  for (const bool checkpointing : {false, true}) {
    const std::unique_ptr<Model> model = NewModel(
        {.replayed_blocks = checkpointing ? kAllBlocks : 0}, AdaptEverything());
    const auto step = [&](uint64_t seed) {
      // Same size, other documents and tokens.
      const int cut = static_cast<int>(10 + seed);
      const Batch batch = RandomBatch(spec_, {cut, 40 - cut}, 2, seed);
      EXPECT_OK(model->ForwardBackward(batch, {}).status());
    };
    step(1);
    const ArenaStats before = model->arena_stats();
    for (uint64_t seed = 3; seed < 7; ++seed) step(seed);
    EXPECT_EQ(model->arena_stats().allocations, before.allocations);
    EXPECT_EQ(before.allocations, 3);  // an arena each
    EXPECT_GT(before.peak_bytes, 0);
  }
}

// The rows of an expert are rounded up to whole tiles.
TEST_P(ModelTest, CountsTheRowsThatFillTiles) {
  const int64_t tile = GroupedGemmTileRows({}, DType::kF32);
  EXPECT_GT(tile, 1);
  for (const bool checkpointing : {false, true}) {
    const std::unique_ptr<Model> model =
        NewModel({.replayed_blocks = checkpointing ? kAllBlocks : 0});
    ASSERT_OK_AND_ASSIGN(
        const ForwardResult result,
        model->ForwardBackward(RandomBatch(spec_, {40, 33}, 3, 3), {}));
    ASSERT_EQ(result.moe_counts.size(), result.expert_tokens.size());
    for (size_t layer = 0; layer < result.moe_counts.size(); ++layer) {
      int64_t padding = 0;
      for (const int64_t rows : result.expert_tokens[layer]) {
        padding += (tile - rows % tile) % tile;
      }
      EXPECT_GT(padding, 0);
      EXPECT_EQ(result.moe_counts[layer].padding_rows, padding) << layer;
    }
  }
}

TEST_P(ModelTest, ReplayingNeedsLessMemory) {
  const Batch batch = RandomBatch(spec_, {50, 50}, 0, 3);
  const auto peak = [&](bool checkpointing) {
    const std::unique_ptr<Model> model =
        NewModel({.replayed_blocks = checkpointing ? kAllBlocks : 0});
    EXPECT_OK(model->ForwardBackward(batch, {}).status());
    return model->arena_stats().peak_bytes;
  };
  EXPECT_LT(peak(true), peak(false));
}

TEST_P(ModelTest, EveryAdapterGetsAGradient) {
  const std::unique_ptr<Model> model = NewModel({}, AdaptEverything());
  // Enough tokens that every expert sees some.
  const Pass pass = Run(model.get(), RandomBatch(spec_, {150, 150}, 0, 3));
  for (const auto& counts : pass.result.expert_tokens) {
    for (int64_t n : counts) ASSERT_GT(n, 0) << "choose another seed";
  }
  int adapters = 0;
  for (Parameter* p : model->parameters().all()) {
    EXPECT_EQ(p->trainable, p->is_adapter) << p->name;
    EXPECT_EQ(p->grad.present(), p->is_adapter) << p->name;
    if (!p->is_adapter) continue;
    ++adapters;
    const std::vector<float>& gradient = pass.gradients.at(p->name);
    const bool expert = p->domain == ParamDomain::kExpert;
    const size_t parts = expert ? p->value.dim(0) : 1;
    for (size_t e = 0; e < parts; ++e) {
      double norm = 0;
      for (size_t i = 0; i < gradient.size() / parts; ++i) {
        norm += std::abs(gradient[e * gradient.size() / parts + i]);
      }
      EXPECT_GT(norm, 0) << p->name << ", part " << e;
    }
  }
  EXPECT_GT(adapters, 0);
}

TEST_P(ModelTest, ANewAdapterDoesNotChangeTheModel) {
  const Batch batch = RandomBatch(spec_, {13, 6}, 0, 3);
  const std::unique_ptr<Model> model = NewModel({}, AdaptEverything());
  ASSERT_OK(model->InitAdapter(1));
  const Pass adapted = Run(model.get(), batch);
  const Pass plain = Run(NewModel({}).get(), batch);
  EXPECT_EQ(adapted.logits, plain.logits);
  EXPECT_EQ(adapted.result.aux_loss, plain.result.aux_loss);
}

TEST_P(ModelTest, DropoutMasksFollowTheStep) {
  LoraOptions dropping = AdaptEverything();
  dropping.dropout = 0.5;
  const std::unique_ptr<Model> model = NewModel({.dropout_seed = 1}, dropping);
  const Batch batch = RandomBatch(spec_, {13, 6}, 0, 3);
  const Pass first = Run(model.get(), batch, {.dropout_step = 1});
  const Pass other = Run(model.get(), batch, {.dropout_step = 2});
  const Pass again = Run(model.get(), batch, {.dropout_step = 1});
  EXPECT_NE(other.result.loss_sum, first.result.loss_sum);
  EXPECT_EQ(again.result.loss_sum, first.result.loss_sum);
  ExpectSameBits(again.gradients, first.gradients);
}

TEST_P(ModelTest, CountsRealTokensOnce) {
  const Batch batch = RandomBatch(spec_, {13, 6}, 4, 3);
  int64_t layers = 0, top_k = 0;
  for (const BlockSpec& block : spec_.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      ++layers;
      top_k = moe->top_k;
    }
  }
  const std::unique_ptr<Model> model =
      NewModel({.replayed_blocks = kAllBlocks});
  for (int repeat = 0; repeat < 2; ++repeat) {
    const Pass pass = Run(model.get(), batch);
    ASSERT_EQ(pass.result.expert_tokens.size(), layers);
    for (const auto& counts : pass.result.expert_tokens) {
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                19 * top_k);
    }
  }
}

TEST_P(ModelTest, GradientsAddUpOverMicroBatches) {
  DropAuxLoss();
  const std::unique_ptr<Model> model = NewModel({});
  const Pass once = Run(model.get(), RandomBatch(spec_, {13}, 0, 3));
  EXPECT_OK(
      model->ForwardBackward(RandomBatch(spec_, {13}, 0, 3), {}).status());
  for (Parameter* p : model->parameters().Trainable()) {
    std::vector<float> twice = once.gradients.at(p->name);
    for (float& v : twice) v *= 2;
    EXPECT_LT(RelativeError(Floats(p->grad), twice), 1e-6) << p->name;
  }
}

TEST_P(ModelTest, TheLastBatchWithoutTargetsHasNoGradient) {
  DropAuxLoss();
  const std::unique_ptr<Model> model = NewModel({});
  Batch batch = RandomBatch(spec_, {13, 6}, 0, 3);
  for (int32_t& t : batch.targets) t = Batch::kIgnore;
  const Pass pass = Run(model.get(), batch);
  EXPECT_EQ(pass.result.loss_sum, 0);
  for (const auto& [name, values] : pass.gradients) {
    for (float v : values) ASSERT_EQ(v, 0) << name;
  }
}

TEST_P(ModelTest, ThePadTokensEmbeddingIsNotTrained) {
  constexpr int kPad = 4, kToken = 5;
  spec_.pad_token_id = kPad;
  spec_.tie_word_embeddings = false;
  const std::unique_ptr<Model> model = NewModel({});
  Batch batch = RandomBatch(spec_, {13, 6}, 0, 3);
  batch.ids[2] = kPad;
  batch.ids[3] = kToken;
  const Pass pass = Run(model.get(), batch);
  const std::vector<float>& gradient =
      pass.gradients.at(spec_.tensor_prefix + "embed_tokens.weight");
  double pad = 0, token = 0;
  for (int64_t i = 0; i < spec_.hidden_size; ++i) {
    pad += std::abs(gradient[kPad * spec_.hidden_size + i]);
    token += std::abs(gradient[kToken * spec_.hidden_size + i]);
  }
  EXPECT_EQ(pad, 0);
  EXPECT_GT(token, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ModelTest, ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cadre::testing
