#include "kernels/attention_residual/attention_residual.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

struct Mix {
  Mix(int64_t tokens, int64_t num_rows, int64_t width, double stddev = 1,
      DType dtype = DType::kF64)
      : norm_weight(TestTensor::Random(dtype, {width}, 1)),
        proj(TestTensor::Random(dtype, {width}, 2)),
        y(TestTensor::Zeros(dtype, {tokens, width})),
        p(TestTensor::Zeros(dtype, {tokens, num_rows})),
        rstd(p),
        dy(TestTensor::Random(dtype, {tokens, width}, 3)),
        dnorm_weight(TestTensor::Zeros(dtype, {width})),
        dproj(dnorm_weight) {
    for (int64_t i = 0; i < num_rows; ++i) {
      rows.push_back(
          TestTensor::Random(dtype, {tokens, width}, 10 + i, stddev));
      drows.push_back(TestTensor::Zeros(dtype, {tokens, width}));
    }
  }
  static std::vector<Tensor> Views(std::vector<TestTensor>& tensors) {
    std::vector<Tensor> out;
    for (TestTensor& tensor : tensors) out.push_back(tensor.view());
    return out;
  }
  absl::Status Forward(const Exec& exec = {}) {
    return AttentionResidualForward(exec, {.rows = Views(rows),
                                           .norm_weight = norm_weight.view(),
                                           .proj = proj.view(),
                                           .y = y.view(),
                                           .p = p.view(),
                                           .rstd = rstd.view()});
  }
  absl::Status Backward(const Exec& exec = {}) {
    return AttentionResidualBackward(exec, {.rows = Views(rows),
                                            .norm_weight = norm_weight.view(),
                                            .proj = proj.view(),
                                            .p = p.view(),
                                            .rstd = rstd.view(),
                                            .dy = dy.view(),
                                            .drows = Views(drows),
                                            .dnorm_weight = dnorm_weight.view(),
                                            .dproj = dproj.view()});
  }

  std::vector<TestTensor> rows, drows;
  TestTensor norm_weight, proj, y, p, rstd, dy, dnorm_weight, dproj;
};

TEST(AttentionResidualTest, HasTheHandValues) {
  Mix m(1, 3, 2);
  m.rows[0] = TestTensor::Of(DType::kF64, {1, 2}, {1, -1});
  m.rows[1] = TestTensor::Of(DType::kF64, {1, 2}, {2, 0});
  m.rows[2] = TestTensor::Of(DType::kF64, {1, 2}, {.5, 3});
  m.norm_weight = TestTensor::Of(DType::kF64, {2}, {1, .5});
  m.proj = TestTensor::Of(DType::kF64, {2}, {.3, -.2});
  ASSERT_OK(m.Forward());
  EXPECT_NEAR(m.p.Get(0), .377398, 5e-7);
  EXPECT_NEAR(m.p.Get(1), .386668, 5e-7);
  EXPECT_NEAR(m.p.Get(2), .235934, 5e-7);
  EXPECT_NEAR(m.y.Get(0), 1.268700, 1e-6);
  EXPECT_NEAR(m.y.Get(1), 0.330405, 1e-6);
}

TEST(AttentionResidualTest, BackwardMatchesFiniteDifferences) {
  ThreadPool pool(2);
  for (int64_t num_rows : {1, 2, 4}) {
    Mix m(5, num_rows, 6);
    ASSERT_OK(m.Forward({.pool = &pool}));
    ASSERT_OK(m.Backward({.pool = &pool}));
    std::vector<testing::GradientCheck> checks;
    for (int64_t i = 0; i < num_rows; ++i)
      checks.push_back({"row", m.rows[i].view(), m.drows[i].view()});
    // A single row has weight 1 whatever its score: those gradients are 0.
    if (num_rows > 1) {
      checks.push_back(
          {"norm_weight", m.norm_weight.view(), m.dnorm_weight.view()});
      checks.push_back({"proj", m.proj.view(), m.dproj.view()});
    }
    ExpectGradients(
        [&] {
          EXPECT_OK(m.Forward());
          return Dot(m.y, m.dy);
        },
        checks);
  }
}

TEST(AttentionResidualTest, RowGradientsAccumulateAndMayBeAbsent) {
  Mix m(2, 3, 4);
  ASSERT_OK(m.Forward());
  ASSERT_OK(m.Backward());
  const TestTensor once = m.drows[1];
  std::vector<Tensor> wanted(3);
  wanted[1] = m.drows[1].view();
  ASSERT_OK(AttentionResidualBackward({}, {.rows = Mix::Views(m.rows),
                                           .norm_weight = m.norm_weight.view(),
                                           .proj = m.proj.view(),
                                           .p = m.p.view(),
                                           .rstd = m.rstd.view(),
                                           .dy = m.dy.view(),
                                           .drows = wanted}));
  for (int64_t i = 0; i < once.size(); ++i)
    EXPECT_NEAR(m.drows[1].Get(i), 2 * once.Get(i), 1e-14);
}

TEST(AttentionResidualTest, MassiveActivationsStayFinite) {
  Mix m(3, 4, 8, /*stddev=*/600, DType::kF32);
  ASSERT_OK(m.Forward());
  ASSERT_OK(m.Backward());
  EXPECT_TRUE(m.y.AllFinite());
  for (TestTensor& drow : m.drows) EXPECT_TRUE(drow.AllFinite());
}

TEST(AttentionResidualTest, AcceptsNoTokensAndRefusesNoRows) {
  Mix none(0, 2, 3);
  EXPECT_OK(none.Forward());
  EXPECT_OK(none.Backward());
  Mix m(1, 0, 3);
  EXPECT_THAT(m.Forward(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
