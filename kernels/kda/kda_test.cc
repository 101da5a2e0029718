// What KDA computes, in float64; kda_values_test.cc has what becomes of it in
// float32 and at the edges of its range.

#include "kernels/kda/kda.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/kda/test_problem.h"
#include "kernels/kda/test_recurrence.h"

namespace cadre {
namespace {

using ::cadre::kda_test::Problem;
using ::cadre::kda_test::Shape;
using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

std::vector<Shape> EdgeShapes() {
  std::vector<Shape> shapes;
  for (int32_t t : {0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 150})
    shapes.push_back({.cu = {0, t}, .lower_bound = -5.0});
  shapes.push_back({.cu = {0, 1, 3, 6, 10, 10, 75}, .padding = 3});
  shapes.push_back({.cu = {0}, .padding = 4});  // all padding
  shapes.push_back({.cu = {0, 70}, .heads = 1, .key_dim = 1, .value_dim = 1});
  shapes.push_back({.cu = {0, 66}, .key_dim = 16, .value_dim = 16});
  shapes.push_back({.cu = {0, 20, 87}, .key_dim = 9, .value_dim = 33});
  shapes.push_back({.cu = {0, 9}, .value_dim = 0});
  shapes.push_back({.cu = {0, 9}, .heads = 0});
  return shapes;
}

TEST(Kda, EqualsTheRecurrenceAndItsReverse) {
  ThreadPool pool(2);
  for (Shape shape : EdgeShapes()) {
    for (std::optional<double> bound :
         {std::optional<double>(), std::optional<double>(-5)}) {
      // Slow gates, ordinary ones, and ones that forget at once.
      for (double z_mean : {-6.0, -1.0, 3.0}) {
        shape.lower_bound = bound;
        shape.z_mean = z_mean;
        SCOPED_TRACE(::testing::Message()
                     << shape.cu.back() << " tokens, mean z " << z_mean);
        Problem p(shape);
        ASSERT_OK(KdaForward({.pool = &pool}, p.Forward()));
        ASSERT_OK(KdaBackward({.pool = &pool}, p.Backward()));
        ExpectNaive(p, 1e-11);
      }
    }
  }
}

TEST(Kda, BackwardMatchesFiniteDifferences) {
  for (Shape shape :
       {Shape{.cu = {0, 1}}, Shape{.cu = {0, 2, 6, 6, 23}, .padding = 2},
        Shape{.cu = {0, 65, 70}, .heads = 1, .key_dim = 4, .value_dim = 5}}) {
    for (std::optional<double> bound :
         {std::optional<double>(), std::optional<double>(-5)}) {
      for (double z_mean : {-4.0, 0.5}) {
        shape.lower_bound = bound;
        shape.z_mean = z_mean;
        Problem p(shape);
        auto loss = [&] {
          EXPECT_OK(KdaForward({}, p.Forward()));
          return Dot(p.o, p.d_o) + Dot(p.s_end, p.ds_end);
        };
        ASSERT_OK(KdaBackward({}, p.Backward()));
        ExpectGradients(loss, {{"q", p.q.view(), p.dq.view()},
                               {"k", p.k.view(), p.dk.view()},
                               {"v", p.v.view(), p.dv.view()},
                               {"z", p.z.view(), p.dz.view()},
                               {"beta", p.beta.view(), p.dbeta.view()},
                               {"a_log", p.a_log.view(), p.da_log.view()},
                               {"dt_bias", p.dt_bias.view(), p.ddt_bias.view()},
                               {"s0", p.s0.view(), p.ds0.view()}});
      }
    }
  }
}

TEST(Kda, PackedDocumentsEqualSeparateOnes) {
  Problem p({.cu = {0, 1, 3, 6, 10, 10, 80}, .lower_bound = -5.0}, DType::kF32);
  KdaForwardArgs forward = p.Forward();
  forward.in.initial_state = forward.final_state = Tensor();
  ASSERT_OK(KdaForward({}, forward));
  TestTensor alone = TestTensor::Zeros(DType::kF32, {p.t, 2, 3});
  for (size_t doc = 0; doc + 1 < p.shape.cu.size(); ++doc) {
    const int32_t begin = p.shape.cu[doc], end = p.shape.cu[doc + 1];
    TestTensor cu = TestTensor::Table({0, end - begin});
    KdaForwardArgs one = forward;
    one.in.q = forward.in.q.Rows(begin, end);
    one.in.k = forward.in.k.Rows(begin, end);
    one.in.v = forward.in.v.Rows(begin, end);
    one.in.z = forward.in.z.Rows(begin, end);
    one.in.beta = forward.in.beta.Rows(begin, end);
    one.in.cu_seqlens = cu.view();
    one.o = alone.view().Rows(begin, end);
    ASSERT_OK(KdaForward({}, one));
  }
  for (int64_t i = 0; i < alone.size(); ++i)
    ASSERT_EQ(p.o.Get(i), alone.Get(i)) << i;
}

TEST(Kda, FinalStateContinuesADocument) {
  Problem whole({.cu = {0, 100}});
  ASSERT_OK(KdaForward({}, whole.Forward()));
  for (int32_t cut : {1, 37, 64}) {
    Problem parts({.cu = {0, 100}});
    TestTensor first = TestTensor::Table({0, cut});
    TestTensor second = TestTensor::Table({0, 100 - cut});
    TestTensor between = parts.s_end;
    for (int half : {0, 1}) {
      KdaForwardArgs args = parts.Forward();
      const int64_t begin = half == 0 ? 0 : cut, end = half == 0 ? cut : 100;
      for (Tensor* tensor : {&args.in.q, &args.in.k, &args.in.v, &args.in.z,
                             &args.in.beta, &args.o})
        *tensor = tensor->Rows(begin, end);
      args.in.cu_seqlens = half == 0 ? first.view() : second.view();
      (half == 0 ? args.final_state : args.in.initial_state) = between.view();
      ASSERT_OK(KdaForward({}, args));
    }
    EXPECT_LE(RelativeError(parts.o, whole.o), 1e-13);
    EXPECT_LE(RelativeError(parts.s_end, whole.s_end), 1e-13);
  }
}

TEST(Kda, AbsentOptionsMeanZerosAndNotWanted) {
  Problem p({.cu = {0, 5, 70}});
  KdaBackwardArgs args = p.Backward();
  args.in.initial_state = args.d_final_state = args.da_log = args.ddt_bias =
      args.d_initial_state = Tensor();
  ASSERT_OK(KdaBackward({}, args));
  Problem zeros({.cu = {0, 5, 70}});
  for (int64_t i = 0; i < zeros.s0.size(); ++i) {
    zeros.s0.Set(i, 0);
    zeros.ds_end.Set(i, 0);
  }
  ASSERT_OK(KdaBackward({}, zeros.Backward()));
  EXPECT_EQ(RelativeError(p.dq, zeros.dq), 0);
  EXPECT_EQ(RelativeError(p.dk, zeros.dk), 0);
  EXPECT_EQ(RelativeError(p.dv, zeros.dv), 0);
  EXPECT_EQ(RelativeError(p.dz, zeros.dz), 0);
  EXPECT_EQ(RelativeError(p.dbeta, zeros.dbeta), 0);
}

TEST(Kda, ParameterGradientsAccumulateOverCalls) {
  Problem p({.cu = {0, 5, 9}});
  ASSERT_OK(KdaBackward({}, p.Backward()));
  const TestTensor a_log = p.da_log, dt_bias = p.ddt_bias, q = p.dq;
  ASSERT_OK(KdaBackward({}, p.Backward()));
  for (int64_t i = 0; i < a_log.size(); ++i)
    EXPECT_DOUBLE_EQ(p.da_log.Get(i), 2 * a_log.Get(i));
  for (int64_t i = 0; i < dt_bias.size(); ++i)
    EXPECT_DOUBLE_EQ(p.ddt_bias.Get(i), 2 * dt_bias.Get(i));
  EXPECT_EQ(RelativeError(p.dq, q), 0);
}

TEST(Kda, RefusesBadInputs) {
  Problem p({.cu = {0, 4}});
  KdaForwardArgs args = p.Forward();
  args.in.lower_bound = 5;
  EXPECT_THAT(KdaForward({}, args), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("lower_bound is 5")));
  args = p.Forward();
  args.in.a_log = Tensor();
  EXPECT_THAT(KdaForward({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a_log is absent, expected f64[2]")));
  args = p.Forward();
  args.o = p.q.view();
  EXPECT_THAT(KdaForward({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("o is f64[4,2,5], expected f64[4,2,3]")));
  TestTensor cu = TestTensor::Table({0, 5});
  args = p.Forward();
  args.in.cu_seqlens = cu.view();
  EXPECT_THAT(KdaForward({}, args), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("cu_seqlens[1] is 5")));
}

}  // namespace
}  // namespace cadre
