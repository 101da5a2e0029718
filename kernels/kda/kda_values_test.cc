// KDA's values: in float32, where inputs are large, in padding, over threads,
// and with columns of zeros.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/test_problem.h"

namespace cadre {
namespace {

using ::cadre::kda_test::Problem;
using ::cadre::kda_test::Shape;
using ::cadre::testing::RelativeError;
using ::cadre::testing::TestTensor;

void ExpectFloat32(const Problem& single, const Problem& full) {
  EXPECT_LE(RelativeError(single.o, full.o), 3e-6);
  EXPECT_LE(RelativeError(single.s_end, full.s_end), 3e-6);
  EXPECT_LE(RelativeError(single.dq, full.dq), 3e-6);
  EXPECT_LE(RelativeError(single.dk, full.dk), 3e-6);
  EXPECT_LE(RelativeError(single.dv, full.dv), 3e-6);
  EXPECT_LE(RelativeError(single.dz, full.dz), 1e-5);
  EXPECT_LE(RelativeError(single.dbeta, full.dbeta), 1e-5);
  EXPECT_LE(RelativeError(single.ds0, full.ds0), 3e-6);
}

TEST(Kda, Float32AgreesWithFloat64) {
  for (double z_mean : {-6.0, 1.0}) {
    const Shape shape{.cu = {0, 3, 150},
                      .key_dim = 16,
                      .value_dim = 16,
                      .lower_bound = -5.0,
                      .z_mean = z_mean};
    Problem single(shape, DType::kF32), full(shape);
    ASSERT_OK(KdaForward({}, single.Forward()));
    ASSERT_OK(KdaBackward({}, single.Backward()));
    ASSERT_OK(KdaForward({}, full.Forward()));
    ASSERT_OK(KdaBackward({}, full.Backward()));
    ExpectFloat32(single, full);
  }
}

// Decays so slow that the state remembers the whole document: what is lost to
// rounding must not grow with its length.
TEST(Kda, Float32HoldsOver64KTokensWithSlowGates) {
  for (std::optional<double> bound :
       {std::optional<double>(), std::optional<double>(-5)}) {
    const Shape shape{.cu = {0, 1 << 16},
                      .heads = 1,
                      .key_dim = 8,
                      .value_dim = 8,
                      .lower_bound = bound,
                      .z_mean = -12};
    Problem single(shape, DType::kF32), full(shape);
    for (Problem* p : {&single, &full}) {
      for (int64_t i = 0; i < p->a_log.size(); ++i) p->a_log.Set(i, 0);
      ASSERT_OK(KdaForward({}, p->Forward()));
      ASSERT_OK(KdaBackward({}, p->Backward()));
    }
    ExpectFloat32(single, full);
    // Sums over all tokens.
    EXPECT_LE(RelativeError(single.da_log, full.da_log), 1e-4);
    EXPECT_LE(RelativeError(single.ddt_bias, full.ddt_bias), 1e-4);
  }
}

TEST(Kda, MassiveInputsStayFinite) {
  for (std::optional<double> bound :
       {std::optional<double>(), std::optional<double>(-5)}) {
    Problem p(
        {.cu = {0, 130}, .lower_bound = bound, .z_stddev = 1e3, .scale = 1e3},
        DType::kF32);
    for (int64_t i = 0; i < p.beta.size(); ++i)
      p.beta.Set(i, i % 2 == 0 ? 1e3 : -1e3);
    ASSERT_OK(KdaForward({}, p.Forward()));
    ASSERT_OK(KdaBackward({}, p.Backward()));
    for (const TestTensor* x : {&p.o, &p.s_end, &p.dq, &p.dk, &p.dv, &p.dz,
                                &p.dbeta, &p.da_log, &p.ddt_bias, &p.ds0}) {
      EXPECT_TRUE(x->AllFinite());
    }
  }
}

TEST(Kda, PaddingIsNeitherReadNorLeftUnwritten) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Problem p({.cu = {0, 4, 7}, .padding = 2});
  for (TestTensor* x : {&p.q, &p.k, &p.v, &p.z, &p.beta, &p.d_o}) {
    const int64_t row = x->size() / p.t;
    for (int64_t i = 7 * row; i < x->size(); ++i) x->Set(i, nan);
  }
  for (TestTensor* x : {&p.o, &p.dq, &p.dk, &p.dv, &p.dz, &p.dbeta})
    for (int64_t i = 0; i < x->size(); ++i) x->Set(i, nan);
  ASSERT_OK(KdaForward({}, p.Forward()));
  ASSERT_OK(KdaBackward({}, p.Backward()));
  for (TestTensor* x : {&p.o, &p.dq, &p.dk, &p.dv, &p.dz, &p.dbeta}) {
    EXPECT_TRUE(x->AllFinite());
    EXPECT_EQ(x->Get(x->size() - 1), 0);
  }
}

TEST(Kda, ThreadsDoNotChangeTheResult) {
  const Shape shape{.cu = {0, 5, 70, 140}, .heads = 5};
  ThreadPool pool(4);
  Problem one(shape, DType::kF32), four(shape, DType::kF32);
  ASSERT_OK(KdaBackward({}, one.Backward()));
  ASSERT_OK(KdaBackward({.pool = &pool}, four.Backward()));
  EXPECT_EQ(RelativeError(one.dk, four.dk), 0);
  EXPECT_EQ(RelativeError(one.da_log, four.da_log), 0);
  EXPECT_EQ(RelativeError(one.ddt_bias, four.ddt_bias), 0);
}

// `x` with rows of `from` elements, of `to`, the new ones `fill`.
TestTensor Wider(const TestTensor& x, int64_t from, int64_t to,
                 double fill = 0) {
  TestTensor out = TestTensor::Full(DType::kF64, {x.size() / from * to}, fill);
  for (int64_t i = 0; i < x.size(); ++i)
    out.Set(i / from * to + i % from, x.Get(i));
  return out;
}
void Scale(TestTensor& x, double by) {
  for (int64_t i = 0; i < x.size(); ++i) x.Set(i, x.Get(i) * by);
}

// What kernels/linear_attention/pad_plan.h rests on: columns of zeros add
// nothing, and neither do channels that do not decay.
TEST(Kda, ColumnsOfZerosChangeNothingButTheScale) {
  for (std::optional<double> bound :
       {std::optional<double>(), std::optional<double>(-5)}) {
    Shape shape{.cu = {0, 3, 70}, .lower_bound = bound, .z_mean = 1};
    Problem p(shape);
    shape.key_dim = 9, shape.value_dim = 7;
    Problem wide(shape);
    const double scale = std::sqrt(9.0 / 5);
    const auto fill = [](TestTensor& to, const TestTensor& from) {
      ASSERT_EQ(to.size(), from.size());
      for (int64_t i = 0; i < to.size(); ++i) to.Set(i, from.Get(i));
    };
    const auto state = [](const TestTensor& x) {
      return Wider(Wider(x, 3, 7), 5 * 7, 9 * 7);
    };
    fill(wide.q, Wider(p.q, 5, 9));
    Scale(wide.q, scale);
    fill(wide.k, Wider(p.k, 5, 9));
    fill(wide.v, Wider(p.v, 3, 7));
    fill(wide.z, Wider(p.z, 5, 9, -1e30));
    fill(wide.dt_bias, Wider(p.dt_bias, 5, 9));
    fill(wide.d_o, Wider(p.d_o, 3, 7));
    fill(wide.s0, state(p.s0));
    fill(wide.ds_end, state(p.ds_end));
    for (Problem* each : {&p, &wide}) {
      ASSERT_OK(KdaForward({}, each->Forward()));
      ASSERT_OK(KdaBackward({}, each->Backward()));
    }
    EXPECT_LE(RelativeError(wide.o, Wider(p.o, 3, 7)), 1e-14);
    EXPECT_LE(RelativeError(wide.s_end, state(p.s_end)), 1e-14);
    EXPECT_LE(RelativeError(wide.dv, Wider(p.dv, 3, 7)), 1e-13);
    EXPECT_LE(RelativeError(wide.dz, Wider(p.dz, 5, 9)), 1e-13);
    EXPECT_LE(RelativeError(wide.dbeta, p.dbeta), 1e-13);
    EXPECT_LE(RelativeError(wide.da_log, p.da_log), 1e-13);
    EXPECT_LE(RelativeError(wide.ddt_bias, Wider(p.ddt_bias, 5, 9)), 1e-13);
    // Gradients of what is not there are not zero, and are dropped.
    for (int64_t i = 0; i < p.dq.size(); ++i) {
      const int64_t at = i / 5 * 9 + i % 5;
      ASSERT_NEAR(wide.dq.Get(at) * scale, p.dq.Get(i), 1e-12);
      ASSERT_NEAR(wide.dk.Get(at), p.dk.Get(i), 1e-12);
    }
    for (int64_t i = 0; i < p.ds0.size(); ++i) {
      const int64_t at = i / 15 * 63 + i / 3 % 5 * 7 + i % 3;
      ASSERT_NEAR(wide.ds0.Get(at), p.ds0.Get(i), 1e-12);
    }
  }
}

}  // namespace
}  // namespace cadre
