#include "worker/moe/expert_moves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker/comm/local_communicator.h"
#include "worker/model/tiny_models.h"
#include "worker/moe/rank_runs.h"

namespace cadre::testing {
namespace {

constexpr int kRanks = 4;

using ::testing::HasSubstr;

void OnRanks(const std::function<void(int, Communicator*)>& body) {
  auto group = CreateLocalCommunicators(kRanks, {.timeout = absl::Seconds(30)});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      body(rank, group[rank].get());
      EXPECT_OK(group[rank]->Barrier());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::unique_ptr<Model> ModelOf(const ModelSpec& spec, int rank,
                               const ExpertPlacement& placement, bool lora) {
  ModelOptions options;
  options.expert_parallel = {.rank = rank, .placement = placement};
  if (lora) options.lora = PlanLora(spec, AdaptEverything()).value();
  auto model = Model::Create(spec, std::move(options)).value();
  Randomize(model.get(), 3);
  return model;
}

std::vector<float> Row(const Tensor& t, int64_t row) {
  const auto values = t.Rows(row, row + 1).span<float>();
  return {values.begin(), values.end()};
}

std::vector<float> Times(std::vector<float> values, float factor) {
  for (float& v : values) v *= factor;
  return values;
}

// Empty spare slots.
ExpertPlacement WithHoles(const ModelSpec& spec) {
  return PlaceContiguous(WithSpares(spec, kRanks, 1).shape).value();
}

TEST(ExpertCopiesTest, GradientsGoHomeAndValuesComeBack) {
  const ModelSpec spec = TinyModelNamed("KimiLinear");
  const ExpertPlacement placement = WithSpares(spec, kRanks, 1);
  for (const bool lora : {false, true}) {
    OnRanks([&](int rank, Communicator* group) {
      const auto model = ModelOf(spec, rank, placement, lora);
      const auto parameters = model->expert_parameters();
      ASSERT_FALSE(parameters.empty());
      // The gradient of slot s is s + 1 everywhere.
      const int64_t per_rank = placement.shape.slots_per_rank;
      for (const auto& [p, layer] : parameters) {
        for (int64_t row = 0; p->trainable && row < per_rank; ++row) {
          for (float& g : p->grad.Rows(row, row + 1).span<float>()) {
            g = static_cast<float>(rank * per_rank + row + 1);
          }
        }
      }
      ASSERT_OK(SumCopiesAtHome(Exec(), group, *model->expert_parallel(),
                                parameters));
      for (const auto& [p, layer] : parameters) {
        for (int64_t row = 0; p->trainable && row < per_rank; ++row) {
          const HeldRow& held = p->rows[row];
          float sum = 0;
          for (int64_t i = 0;
               held.home && i < placement.layers[layer].slot_count[held.index];
               ++i) {
            sum += static_cast<float>(
                placement.SlotOfCopy(layer, held.index, i) + 1);
          }
          EXPECT_THAT(Row(p->grad, row), ::testing::Each(sum)) << p->name;
        }
      }
      // An update at home only.
      for (const auto& [p, layer] : parameters) {
        for (int64_t row = 0; p->trainable && row < per_rank; ++row) {
          if (!p->rows[row].home) continue;
          for (float& v : p->value.Rows(row, row + 1).span<float>()) v *= 2;
        }
      }
      ASSERT_OK(
          SpreadFromHome(Exec(), group, *model->expert_parallel(), parameters));
      const auto fresh = ModelOf(spec, rank, placement, lora);
      for (const auto& [p, layer] : parameters) {
        const Parameter* before = fresh->parameters().Find(p->name);
        for (int64_t row = 0; row < per_rank; ++row) {
          EXPECT_EQ(Row(p->value, row),
                    Times(Row(before->value, row), p->trainable ? 2 : 1));
        }
      }
    });
  }
}

TEST(MoveExpertsTest, WeightsAdaptersAndStateFollowTheirExperts) {
  const ModelSpec spec = TinyModelNamed("KimiK3");
  const ExpertPlacement from = WithHoles(spec);
  const ExpertPlacement to = WithSpares(spec, kRanks, 1);
  OnRanks([&](int rank, Communicator* group) {
    const auto model = ModelOf(spec, rank, from, /*lora=*/true);
    ASSERT_OK(model->Connect({.expert_dispatch = group, .world = group}));
    const Batch batch = RandomBatch(spec, {4 + rank, 3}, 0, rank);
    const auto before = model->Forward(batch, {});
    ASSERT_OK(before.status());

    // State that says whose it is: twice and thrice the expert's values.
    std::vector<ExpertTensor> moved = ExpertValues(model->expert_parameters());
    std::vector<std::vector<float>> states;
    std::vector<ExpertParameter> trained;
    for (const ExpertParameter& expert : model->expert_parameters()) {
      if (expert.parameter->trainable) trained.push_back(expert);
    }
    for (const float factor : {2.0f, 3.0f}) {
      for (const auto& [p, layer] : trained) {
        std::vector<float>& state = states.emplace_back();
        for (size_t row = 0; row < p->rows.size(); ++row) {
          const auto values =
              Times(Row(p->value, row), p->rows[row].home ? factor : 0.0f);
          state.insert(state.end(), values.begin(), values.end());
        }
      }
    }
    for (size_t i = 0; i < states.size(); ++i) {
      const auto& [p, layer] = trained[i % trained.size()];
      moved.push_back(
          {.layer = layer,
           .rows = Tensor(states[i].data(), DType::kF32, p->value.dims()),
           .home_only = true});
    }
    ASSERT_OK(MoveExperts(Exec(), group, *model->expert_parallel(), to, moved));
    ASSERT_OK(model->SetPlacement(to));

    const auto expected = ModelOf(spec, rank, to, /*lora=*/true);
    for (const auto& [p, layer] : model->expert_parameters()) {
      const Parameter* want = expected->parameters().Find(p->name);
      for (size_t row = 0; row < p->rows.size(); ++row) {
        EXPECT_EQ(p->rows[row].index, want->rows[row].index);
        EXPECT_EQ(p->rows[row].home, want->rows[row].home);
        EXPECT_EQ(Row(p->value, row), Row(want->value, row)) << p->name;
      }
    }
    for (size_t i = 0; i < states.size(); ++i) {
      const auto& [p, layer] = trained[i % trained.size()];
      const float factor = i < trained.size() ? 2.0f : 3.0f;
      const Tensor state(states[i].data(), DType::kF32, p->value.dims());
      for (size_t row = 0; row < p->rows.size(); ++row) {
        EXPECT_EQ(Row(state, row),
                  Times(Row(p->value, row), p->rows[row].home ? factor : 0.0f));
      }
    }
    const auto after = model->Forward(batch, {});
    ASSERT_OK(after.status());
    EXPECT_NEAR(after->loss_sum, before->loss_sum,
                1e-5 * std::abs(before->loss_sum));
    EXPECT_EQ(after->expert_tokens, before->expert_tokens);
  });
}

TEST(MoveExpertsTest, NothingMovesWhenPlansDiffer) {
  const ModelSpec spec = TinyModelNamed("Qwen3Moe");
  const ExpertPlacement from = WithHoles(spec);
  OnRanks([&](int rank, Communicator* group) {
    const auto model = ModelOf(spec, rank, from, /*lora=*/false);
    ExpertPlacement to = WithSpares(spec, kRanks, 1);
    if (rank == 2) to.plan_epoch = 7;
    EXPECT_THAT(MoveExperts(Exec(), group, *model->expert_parallel(), to,
                            ExpertValues(model->expert_parameters())),
                StatusIs(absl::StatusCode::kAborted,
                         HasSubstr("do not hold the same plans")));
    const auto fresh = ModelOf(spec, rank, from, /*lora=*/false);
    for (const auto& [p, layer] : model->expert_parameters()) {
      const Parameter* before = fresh->parameters().Find(p->name);
      EXPECT_EQ(std::memcmp(p->value.raw(), before->value.raw(),
                            p->value.num_bytes()),
                0);
    }
  });
}

}  // namespace
}  // namespace cadre::testing
