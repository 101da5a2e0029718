#include "worker/shard/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;

class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    registry_.Add({.name = "w",
                   .trainable = true,
                   .value = Tensor(w_, DType::kF32, {2}),
                   .grad = Tensor(g_, DType::kF32, {2})});
    registry_.Add({.name = "frozen", .value = Tensor(f_, DType::kF32, {1})});
  }

  float w_[2] = {1, -2}, g_[2] = {3, 4}, f_[1] = {5};
  ParameterRegistry registry_;
};

TEST_F(OptimizerTest, FirstStepMovesByTheLearningRate) {
  ASSERT_OK_AND_ASSIGN(auto optimizer,
                       Optimizer::Create({}, &registry_, {.max_grad_norm = 1}));
  ASSERT_OK_AND_ASSIGN(const double squares, optimizer->GradientSquares());
  EXPECT_DOUBLE_EQ(squares, 25);
  ASSERT_OK_AND_ASSIGN(const bool stepped, optimizer->Step(0.1, 5));
  EXPECT_TRUE(stepped);
  // AdamW's first update is lr * sign(g), whatever the clipping.
  EXPECT_NEAR(w_[0], 0.9, 1e-6);
  EXPECT_NEAR(w_[1], -2.1, 1e-6);
  EXPECT_EQ(f_[0], 5);
  EXPECT_EQ(optimizer->num_updates(), 1);
  // m holds (1 - beta1) times the clipped gradient.
  EXPECT_NEAR(optimizer->slots()[0].m.data<float>()[0], 0.1 * 3 / 5.000001,
              1e-7);
}

TEST_F(OptimizerTest, DecaysWeightsApartFromTheGradient) {
  ASSERT_OK_AND_ASSIGN(
      auto optimizer, Optimizer::Create({}, &registry_, {.weight_decay = 0.5}));
  ASSERT_OK(optimizer->Step(0.1, 5));
  EXPECT_NEAR(w_[0], 1 * (1 - 0.05) - 0.1, 1e-6);
}

TEST_F(OptimizerTest, NonFiniteNormUpdatesNothing) {
  ASSERT_OK_AND_ASSIGN(auto optimizer, Optimizer::Create({}, &registry_, {}));
  ASSERT_OK_AND_ASSIGN(
      const bool stepped,
      optimizer->Step(0.1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(stepped);
  EXPECT_EQ(w_[0], 1);
  EXPECT_EQ(optimizer->num_updates(), 0);
  g_[0] = std::numeric_limits<float>::infinity();
  ASSERT_OK_AND_ASSIGN(const double squares, optimizer->GradientSquares());
  EXPECT_FALSE(std::isfinite(squares));
}

TEST_F(OptimizerTest, RefusesBadOptionsAndEmptyModels) {
  EXPECT_THAT(Optimizer::Create({}, &registry_, {.beta1 = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("beta1")));
  ParameterRegistry empty;
  EXPECT_THAT(Optimizer::Create({}, &empty, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
