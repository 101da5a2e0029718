#include "kernels/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/hyper_connection/sinkhorn.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;

const double kLogits[9] = {0, 1, 2, 1, 0, -1, .5, .5, -2};

TEST(SinkhornTest, HasTheHandValuesOfOneIteration) {
  Sinkhorn<double> sinkhorn(3, 1, 1e-6);
  const double* c = sinkhorn.Forward(kLogits);
  const double expected[6] = {.072867, .252364, .837098,
                              .538412, .252364, .113290};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(c[i], expected[i], 1e-6);
}

TEST(SinkhornTest, HasTheHandValuesOfTwentyIterationsAndMixesTransposed) {
  Sinkhorn<double> sinkhorn(3, 20, 1e-6);
  const double* c = sinkhorn.Forward(kLogits);
  const double expected[9] = {.048789, .181395, .769815, .557982, .280762,
                              .161256, .393228, .537843, .068928};
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(c[i], expected[i], 1e-6);

  TestTensor comb = TestTensor::Of(DType::kF64, {1, 3, 3}, {c, c + 9});
  TestTensor x = TestTensor::Of(DType::kF64, {1, 3, 2}, {1, 2, 3, 4, 5, 6});
  TestTensor o = TestTensor::Of(DType::kF64, {1, 2}, {7, 8});
  TestTensor post = TestTensor::Zeros(DType::kF64, {1, 3});
  ASSERT_OK(HyperConnectionWrite({}, {.streams = x.view(),
                                      .o = o.view(),
                                      .post = post.view(),
                                      .comb = comb.view(),
                                      .streams_out = x.view()}));
  const double mixed[6] = {3.688875, 4.688874, 3.712893,
                           4.712892, 1.598223, 2.598223};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(x.Get(i), mixed[i], 1e-6);
}

// A site around the sublayer o = x^2.
struct Site {
  Site(int64_t tokens, int64_t m, int64_t width, int64_t iterations,
       DType dtype = DType::kF64, double stddev = 1)
      : tokens(tokens),
        m(m),
        width(width),
        iterations(iterations),
        streams(TestTensor::Random(dtype, {tokens, m, width}, 1, stddev)),
        fn(TestTensor::Random(dtype, {(2 + m) * m, m * width}, 2, 0.4)),
        base(TestTensor::Random(dtype, {(2 + m) * m}, 3, 0.5)),
        scale(TestTensor::Of(dtype, {3}, {0.7, -1.1, 1.3})),
        x(TestTensor::Zeros(dtype, {tokens, width})),
        o(x),
        pre(TestTensor::Zeros(dtype, {tokens, m})),
        post(pre),
        comb(TestTensor::Zeros(dtype, {tokens, m, m})),
        logits(TestTensor::Zeros(dtype, {tokens, (2 + m) * m})),
        rstd(TestTensor::Zeros(dtype, {tokens})),
        out(streams),
        dout(TestTensor::Random(dtype, {tokens, m, width}, 4)),
        dstreams(streams),
        dx(x),
        dpost(pre),
        dcomb(comb),
        workspace(logits),
        dfn(TestTensor::Zeros(dtype, {(2 + m) * m, m * width})),
        dbase(TestTensor::Zeros(dtype, {(2 + m) * m})),
        dscale(TestTensor::Zeros(dtype, {3})) {}

  HyperConnectionParameters Parameters() {
    return {.fn = fn.view(),
            .base = base.view(),
            .scale = scale.view(),
            .sinkhorn_iters = iterations};
  }
  absl::Status Forward(const Exec& exec = {}) {
    CADRE_RETURN_IF_ERROR(HyperConnectionRead(exec, {.streams = streams.view(),
                                                     .parameters = Parameters(),
                                                     .x = x.view(),
                                                     .pre = pre.view(),
                                                     .post = post.view(),
                                                     .comb = comb.view(),
                                                     .logits = logits.view(),
                                                     .rstd = rstd.view()}));
    for (int64_t i = 0; i < x.size(); ++i) o.Set(i, x.Get(i) * x.Get(i));
    return HyperConnectionWrite(exec, {.streams = streams.view(),
                                       .o = o.view(),
                                       .post = post.view(),
                                       .comb = comb.view(),
                                       .streams_out = out.view()});
  }
  absl::Status Backward(const Exec& exec = {}) {
    dstreams = dout;  // in place
    CADRE_RETURN_IF_ERROR(
        HyperConnectionWriteBackward(exec, {.streams = streams.view(),
                                            .o = o.view(),
                                            .post = post.view(),
                                            .comb = comb.view(),
                                            .dstreams_out = dstreams.view(),
                                            .d_o = dx.view(),
                                            .dpost = dpost.view(),
                                            .dcomb = dcomb.view(),
                                            .dstreams = dstreams.view()}));
    for (int64_t i = 0; i < x.size(); ++i) dx.Set(i, dx.Get(i) * 2 * x.Get(i));
    return HyperConnectionReadBackward(exec, {.streams = streams.view(),
                                              .parameters = Parameters(),
                                              .pre = pre.view(),
                                              .post = post.view(),
                                              .logits = logits.view(),
                                              .rstd = rstd.view(),
                                              .dx = dx.view(),
                                              .dpost = dpost.view(),
                                              .dcomb = dcomb.view(),
                                              .dstreams = dstreams.view(),
                                              .workspace = workspace.view(),
                                              .dfn = dfn.view(),
                                              .dbase = dbase.view(),
                                              .dscale = dscale.view()});
  }

  int64_t tokens, m, width, iterations;
  TestTensor streams, fn, base, scale, x, o, pre, post, comb, logits, rstd, out;
  TestTensor dout, dstreams, dx, dpost, dcomb, workspace, dfn, dbase, dscale;
};

TEST(HyperConnectionTest, BackwardMatchesFiniteDifferences) {
  ThreadPool pool(2);
  for (int64_t iterations : {1, 3, 20}) {
    for (int64_t m : {1, 3, 4}) {
      Site s(5, m, 4, iterations);
      ASSERT_OK(s.Forward({.pool = &pool}));
      ASSERT_OK(s.Backward({.pool = &pool}));
      std::vector<testing::GradientCheck> checks = {
          {"streams", s.streams.view(), s.dstreams.view()},
          {"fn", s.fn.view(), s.dfn.view()},
          {"base", s.base.view(), s.dbase.view()},
          {"scale", s.scale.view(), s.dscale.view()}};
      ExpectGradients(
          [&] {
            EXPECT_OK(s.Forward());
            return Dot(s.out, s.dout);
          },
          checks, {.step = 5e-4});
    }
  }
}

// Columns are normalised last, so they sum to 1 up to eps after any number of
// iterations; rows only approach 1, at a speed that depends on the data.
TEST(HyperConnectionTest, CombColumnsSumToOneAndRowsApproachIt) {
  double last_row_error = 1e9;
  for (int64_t iterations : {1, 4, 16, 64}) {
    Site s(4, 4, 6, iterations);
    ASSERT_OK(s.Forward());
    double row_error = 0;
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t i = 0; i < 4; ++i) {
        double row = 0, column = 0;
        for (int64_t j = 0; j < 4; ++j) {
          row += s.comb.Get((t * 4 + i) * 4 + j);
          column += s.comb.Get((t * 4 + j) * 4 + i);
        }
        EXPECT_NEAR(column, 1, 1e-5);
        row_error = std::max(row_error, std::abs(row - 1));
      }
    }
    EXPECT_LT(row_error, last_row_error) << iterations << " iterations";
    last_row_error = row_error;
  }
}

TEST(HyperConnectionTest, Float32FollowsFloat64AndThreadsChangeNoBit) {
  ThreadPool pool(2);
  Site d(70, 3, 8, 20), f(70, 3, 8, 20, DType::kF32),
      g(70, 3, 8, 20, DType::kF32);
  for (Site* s : {&d, &f}) {
    ASSERT_OK(s->Forward());
    ASSERT_OK(s->Backward());
  }
  ASSERT_OK(g.Forward({.pool = &pool}));
  ASSERT_OK(g.Backward({.pool = &pool}));
  EXPECT_LT(RelativeError(f.out, d.out), 1e-5);
  EXPECT_LT(RelativeError(f.dstreams, d.dstreams), 1e-4);
  EXPECT_EQ(RelativeError(f.out, g.out), 0);
  EXPECT_EQ(RelativeError(f.dstreams, g.dstreams), 0);
  EXPECT_EQ(RelativeError(f.dfn, g.dfn), 0);
}

TEST(HyperConnectionTest, MassiveActivationsStayFinite) {
  Site s(3, 4, 8, 20, DType::kF32, /*stddev=*/600);
  ASSERT_OK(s.Forward());
  ASSERT_OK(s.Backward());
  EXPECT_TRUE(s.out.AllFinite());
  EXPECT_TRUE(s.dstreams.AllFinite());
  EXPECT_TRUE(s.dfn.AllFinite());
}

TEST(HyperConnectionTest, AcceptsNoTokensAndRefusesNoIterations) {
  Site none(0, 2, 3, 2);
  EXPECT_OK(none.Forward());
  EXPECT_OK(none.Backward());
  Site s(1, 2, 3, 0);
  EXPECT_THAT(s.Forward(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StreamsTest, BroadcastAndSumAreTransposed) {
  TestTensor x = TestTensor::Random(DType::kF64, {3, 4}, 1);
  TestTensor streams = TestTensor::Zeros(DType::kF64, {3, 2, 4});
  TestTensor other = TestTensor::Random(DType::kF64, {3, 2, 4}, 2);
  TestTensor sum = x;
  ASSERT_OK(StreamsBroadcast(
      {}, {.x = x.view(), .streams = streams.view(), .factor = 0.5}));
  ASSERT_OK(StreamsSum(
      {}, {.x = sum.view(), .streams = other.view(), .factor = 0.5}));
  EXPECT_NEAR(Dot(streams, other), Dot(x, sum), 1e-14);
  EXPECT_EQ(streams.Get(4), 0.5 * x.Get(0));
}

}  // namespace
}  // namespace cadre
