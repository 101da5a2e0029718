#include "worker/shard/gradient_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker/comm/local_communicator.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

struct Rank {
  explicit Rank(float base)
      : dense{base, base + 1, base + 2, base + 3, base + 4},
        expert{10 * base, 10 * base + 1} {
    registry.Add({.name = "dense",
                  .trainable = true,
                  .value = Tensor(values, DType::kF32, {5}),
                  .grad = Tensor(dense, DType::kF32, {5})});
    registry.Add({.name = "frozen", .value = Tensor(values, DType::kF32, {5})});
    registry.Add({.name = "expert",
                  .domain = ParamDomain::kExpert,
                  .trainable = true,
                  .value = Tensor(values, DType::kF32, {2}),
                  .grad = Tensor(expert, DType::kF32, {2})});
  }
  float values[5] = {}, dense[5], expert[2];
  ParameterRegistry registry;
};

TEST(GradientReducer, SumsEachDomainOverItsGroupThroughASmallBuffer) {
  // 3 elements: tensors are cut and share a collective.
  for (int64_t max_elements : {1, 3, 100}) {
    Rank ranks[2] = {Rank(1), Rank(2)};
    auto world = CreateLocalCommunicators(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        GradientReducer reducer(&ranks[r].registry, {.dense = world[r].get()},
                                max_elements);
        EXPECT_OK(reducer.Reduce());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Rank& rank : ranks) {
      EXPECT_THAT(rank.dense, ElementsAre(3, 5, 7, 9, 11));
    }
    // Experts without a group are whole already.
    EXPECT_THAT(ranks[1].expert, ElementsAre(20, 21));
  }
}

TEST(GradientReducer, ARankAloneNeedsNoCollective) {
  Rank rank(1);
  GradientReducer reducer(&rank.registry, {});
  EXPECT_OK(reducer.Reduce());
  EXPECT_THAT(rank.dense, ElementsAre(1, 2, 3, 4, 5));
}

}  // namespace
}  // namespace cadre
