#include "kernels/gdn/gdn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/kda/kda.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::RelativeError;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

constexpr DType kF64 = DType::kF64;

struct Shape {
  std::vector<int32_t> cu;
  int64_t padding = 0;
  int64_t key_heads = 2;
  int64_t repeats = 2;
  int64_t key_dim = 5;
  int64_t value_dim = 3;
  double a_mean = -2;
  double a_stddev = 1;
  double scale = 1;  // of v and the states
};

// One call of each direction with all its tensors.
struct Problem {
  explicit Problem(const Shape& shape, DType dtype = kF64) : shape(shape) {
    t = shape.cu.back() + shape.padding;
    docs = static_cast<int64_t>(shape.cu.size()) - 1;
    hk = shape.key_heads;
    hv = hk * shape.repeats;
    const int64_t nk = shape.key_dim, nv = shape.value_dim;
    auto random = [&](std::vector<int64_t> dims, int seed, double stddev = 1,
                      double mean = 0) {
      // Drawn in float64 whatever the dtype, so that dtypes can be compared.
      return TestTensor::Random(kF64, dims, seed, stddev, mean).As(dtype);
    };
    const double unit = 1 / std::sqrt(static_cast<double>(nk));
    cu = TestTensor::Table(shape.cu);
    q = random({t, hk, nk}, 1, unit);
    k = random({t, hk, nk}, 2, unit);
    // Writes with |k|^2 beta > 2 would make the recurrence unstable.
    for (int64_t row = 0; row < t * hk; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < nk; ++i)
        squares += k.Get(row * nk + i) * k.Get(row * nk + i);
      for (int64_t i = 0; i < nk; ++i)
        k.Set(row * nk + i, k.Get(row * nk + i) / std::sqrt(squares + 1e-6));
    }
    v = random({t, hv, nv}, 3, shape.scale);
    a = random({t, hv}, 4, shape.a_stddev, shape.a_mean);
    beta = random({t, hv}, 5, 2);
    a_log = random({hv}, 6, 0.5, 0.5);
    dt_bias = random({hv}, 7, 0.3);
    s0 = random({docs, hv, nk, nv}, 8, shape.scale);
    d_o = random({t, hv, nv}, 9);
    ds_end = random({docs, hv, nk, nv}, 10);
    o = dv = random({t, hv, nv}, 11);
    s_end = ds0 = random({docs, hv, nk, nv}, 12);
    dq = dk = random({t, hk, nk}, 13);
    da = dbeta = random({t, hv}, 14);
    da_log = ddt_bias = TestTensor::Zeros(dtype, {hv});
  }

  GdnInputs Inputs() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .a = a.view(),
            .beta = beta.view(),
            .a_log = a_log.view(),
            .dt_bias = dt_bias.view(),
            .cu_seqlens = cu.view(),
            .initial_state = s0.view()};
  }
  GdnForwardArgs Forward() {
    return {.in = Inputs(), .o = o.view(), .final_state = s_end.view()};
  }
  GdnBackwardArgs Backward() {
    return {.in = Inputs(),
            .d_o = d_o.view(),
            .d_final_state = ds_end.view(),
            .dq = dq.view(),
            .dk = dk.view(),
            .dv = dv.view(),
            .da = da.view(),
            .dbeta = dbeta.view(),
            .da_log = da_log.view(),
            .ddt_bias = ddt_bias.view(),
            .d_initial_state = ds0.view()};
  }

  Shape shape;
  int64_t t, docs, hk, hv;
  TestTensor cu = TestTensor::Zeros(DType::kI32, {0});
  TestTensor q = cu, k = cu, v = cu, a = cu, beta = cu, a_log = cu,
             dt_bias = cu, s0 = cu, d_o = cu, ds_end = cu, o = cu, s_end = cu,
             dq = cu, dk = cu, dv = cu, da = cu, dbeta = cu, ds0 = cu,
             da_log = cu, ddt_bias = cu;
};

// Heads of the middle dimension of [T,Hk,K], each repeated.
TestTensor Repeat(const TestTensor& x, int64_t t, int64_t hk, int64_t repeats,
                  int64_t width) {
  TestTensor out = TestTensor::Zeros(kF64, {t, hk * repeats, width});
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t row = i / width;
    const int64_t head = row % (hk * repeats) / repeats;
    out.Set(i, x.Get((row / (hk * repeats) * hk + head) * width + i % width));
  }
  return out;
}

// Sums groups of `n` neighbours.
TestTensor SumLast(const TestTensor& x, int64_t n) {
  TestTensor out = TestTensor::Zeros(kF64, {x.size() / n});
  for (int64_t i = 0; i < x.size(); ++i)
    out.Set(i / n, out.Get(i / n) + x.Get(i));
  return out;
}

// KDA with equal decays in all channels of a head and repeated keys is the
// definition of this op; KDA itself is held against the plain recurrence.
TEST(Gdn, IsKdaWithOneDecayPerHeadAndRepeatedKeys) {
  ThreadPool pool(2);
  const Exec exec{.pool = &pool};
  std::vector<Shape> shapes;
  for (int32_t t : {0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 150})
    shapes.push_back({.cu = {0, t}});
  for (int64_t repeats : {1, 2, 4})
    shapes.push_back(
        {.cu = {0, 1, 3, 6, 10, 10, 75}, .padding = 3, .repeats = repeats});
  shapes.push_back({.cu = {0, 70},
                    .key_heads = 1,
                    .repeats = 1,
                    .key_dim = 1,
                    .value_dim = 1});
  shapes.push_back({.cu = {0, 66}, .key_dim = 16, .value_dim = 16});
  shapes.push_back({.cu = {0, 20, 40}, .key_dim = 9, .value_dim = 33});
  shapes.push_back({.cu = {0}, .padding = 4});
  for (Shape shape : shapes) {
    for (double a_mean : {-6.0, 2.0}) {
      shape.a_mean = a_mean;
      SCOPED_TRACE(::testing::Message()
                   << shape.cu.back() << " tokens, repeats " << shape.repeats);
      Problem p(shape);
      ASSERT_OK(GdnForward(exec, p.Forward()));
      ASSERT_OK(GdnBackward(exec, p.Backward()));

      const int64_t nk = shape.key_dim;
      TestTensor q = Repeat(p.q, p.t, p.hk, shape.repeats, nk);
      TestTensor k = Repeat(p.k, p.t, p.hk, shape.repeats, nk);
      TestTensor z = Repeat(p.a, p.t, p.hv, 1, 1), z_wide = q;
      TestTensor bias = TestTensor::Zeros(kF64, {p.hv * nk});
      for (int64_t i = 0; i < q.size(); ++i) z_wide.Set(i, z.Get(i / nk));
      for (int64_t i = 0; i < bias.size(); ++i)
        bias.Set(i, p.dt_bias.Get(i / nk));
      TestTensor o = p.o, s_end = p.s_end, dv = p.dv, dbeta = p.dbeta;
      TestTensor dq = q, dk = q, dz = q, ds0 = p.ds0, dbias = bias;
      TestTensor da_log = TestTensor::Zeros(kF64, {p.hv});
      for (int64_t i = 0; i < dbias.size(); ++i) dbias.Set(i, 0);
      const KdaInputs in{.q = q.view(),
                         .k = k.view(),
                         .v = p.v.view(),
                         .z = z_wide.view(),
                         .beta = p.beta.view(),
                         .a_log = p.a_log.view(),
                         .dt_bias = bias.view(),
                         .cu_seqlens = p.cu.view(),
                         .initial_state = p.s0.view()};
      ASSERT_OK(KdaForward(
          exec, {.in = in, .o = o.view(), .final_state = s_end.view()}));
      ASSERT_OK(KdaBackward(exec, {.in = in,
                                   .d_o = p.d_o.view(),
                                   .d_final_state = p.ds_end.view(),
                                   .dq = dq.view(),
                                   .dk = dk.view(),
                                   .dv = dv.view(),
                                   .dz = dz.view(),
                                   .dbeta = dbeta.view(),
                                   .da_log = da_log.view(),
                                   .ddt_bias = dbias.view(),
                                   .d_initial_state = ds0.view()}));
      EXPECT_EQ(RelativeError(p.o, o), 0);
      EXPECT_EQ(RelativeError(p.s_end, s_end), 0);
      EXPECT_EQ(RelativeError(p.dv, dv), 0);
      EXPECT_EQ(RelativeError(p.dbeta, dbeta), 0);
      EXPECT_EQ(RelativeError(p.ds0, ds0), 0);
      EXPECT_LE(RelativeError(p.da, SumLast(dz, nk)), 1e-12);
      EXPECT_LE(RelativeError(p.da_log, da_log), 1e-12);
      EXPECT_LE(RelativeError(p.ddt_bias, SumLast(dbias, nk)), 1e-12);
      // Sum over the value heads that share a key head.
      for (auto [got, wide] : {std::pair(&p.dq, &dq), {&p.dk, &dk}}) {
        TestTensor sum = TestTensor::Zeros(kF64, {p.t, p.hk, nk});
        for (int64_t i = 0; i < wide->size(); ++i) {
          const int64_t at = (i / nk / shape.repeats) * nk + i % nk;
          sum.Set(at, sum.Get(at) + wide->Get(i));
        }
        EXPECT_LE(RelativeError(*got, sum), 1e-13);
      }
    }
  }
}

TEST(Gdn, BackwardMatchesFiniteDifferences) {
  for (Shape shape : {Shape{.cu = {0, 1}, .key_heads = 1, .repeats = 4},
                      Shape{.cu = {0, 2, 6, 6, 23}, .padding = 2},
                      Shape{.cu = {0, 65, 70}, .key_heads = 2, .repeats = 1}}) {
    for (double a_mean : {-4.0, 0.5}) {
      shape.a_mean = a_mean;
      Problem p(shape);
      auto loss = [&] {
        EXPECT_OK(GdnForward({}, p.Forward()));
        return Dot(p.o, p.d_o) + Dot(p.s_end, p.ds_end);
      };
      ASSERT_OK(GdnBackward({}, p.Backward()));
      ExpectGradients(loss, {{"q", p.q.view(), p.dq.view()},
                             {"k", p.k.view(), p.dk.view()},
                             {"v", p.v.view(), p.dv.view()},
                             {"a", p.a.view(), p.da.view()},
                             {"beta", p.beta.view(), p.dbeta.view()},
                             {"a_log", p.a_log.view(), p.da_log.view()},
                             {"dt_bias", p.dt_bias.view(), p.ddt_bias.view()},
                             {"s0", p.s0.view(), p.ds0.view()}});
    }
  }
}

TEST(Gdn, AbsentOptionsMeanZerosAndNotWanted) {
  Problem p({.cu = {0, 5, 70}});
  GdnForwardArgs forward = p.Forward();
  GdnBackwardArgs backward = p.Backward();
  forward.in.initial_state = forward.final_state = Tensor();
  backward.in.initial_state = backward.d_final_state = backward.da_log =
      backward.ddt_bias = backward.d_initial_state = Tensor();
  ASSERT_OK(GdnForward({}, forward));
  ASSERT_OK(GdnBackward({}, backward));
  Problem zeros({.cu = {0, 5, 70}});
  for (int64_t i = 0; i < zeros.s0.size(); ++i) {
    zeros.s0.Set(i, 0);
    zeros.ds_end.Set(i, 0);
  }
  ASSERT_OK(GdnForward({}, zeros.Forward()));
  ASSERT_OK(GdnBackward({}, zeros.Backward()));
  EXPECT_EQ(RelativeError(p.o, zeros.o), 0);
  EXPECT_EQ(RelativeError(p.dk, zeros.dk), 0);
  EXPECT_EQ(RelativeError(p.da, zeros.da), 0);
}

TEST(Gdn, Float32AgreesWithFloat64) {
  const Shape shape{.cu = {0, 3, 150}, .key_dim = 16, .value_dim = 16};
  Problem single(shape, DType::kF32), full(shape);
  ASSERT_OK(GdnForward({}, single.Forward()));
  ASSERT_OK(GdnBackward({}, single.Backward()));
  ASSERT_OK(GdnForward({}, full.Forward()));
  ASSERT_OK(GdnBackward({}, full.Backward()));
  EXPECT_LE(RelativeError(single.o, full.o), 3e-6);
  EXPECT_LE(RelativeError(single.dq, full.dq), 3e-6);
  EXPECT_LE(RelativeError(single.dk, full.dk), 3e-6);
  EXPECT_LE(RelativeError(single.dv, full.dv), 3e-6);
  EXPECT_LE(RelativeError(single.da, full.da), 1e-5);
  EXPECT_LE(RelativeError(single.dbeta, full.dbeta), 1e-5);
}

TEST(Gdn, Float32HoldsOver64KTokensWithSlowGates) {
  const Shape shape{.cu = {0, 1 << 16},
                    .key_heads = 1,
                    .key_dim = 8,
                    .value_dim = 8,
                    .a_mean = -12};
  Problem single(shape, DType::kF32), full(shape);
  for (Problem* p : {&single, &full}) {
    for (int64_t i = 0; i < p->a_log.size(); ++i) p->a_log.Set(i, 0);
    ASSERT_OK(GdnForward({}, p->Forward()));
    ASSERT_OK(GdnBackward({}, p->Backward()));
  }
  EXPECT_LE(RelativeError(single.o, full.o), 3e-6);
  EXPECT_LE(RelativeError(single.s_end, full.s_end), 3e-6);
  EXPECT_LE(RelativeError(single.dq, full.dq), 3e-6);
  EXPECT_LE(RelativeError(single.dk, full.dk), 3e-6);
  EXPECT_LE(RelativeError(single.dv, full.dv), 3e-6);
  EXPECT_LE(RelativeError(single.da, full.da), 1e-5);
  EXPECT_LE(RelativeError(single.dbeta, full.dbeta), 1e-5);
  // Sums over all tokens.
  EXPECT_LE(RelativeError(single.da_log, full.da_log), 1e-4);
  EXPECT_LE(RelativeError(single.ddt_bias, full.ddt_bias), 1e-4);
}

TEST(Gdn, MassiveInputsStayFinite) {
  Problem p({.cu = {0, 130}, .a_stddev = 1e3, .scale = 1e3}, DType::kF32);
  ASSERT_OK(GdnForward({}, p.Forward()));
  ASSERT_OK(GdnBackward({}, p.Backward()));
  for (const TestTensor* x : {&p.o, &p.s_end, &p.dq, &p.dk, &p.dv, &p.da,
                              &p.dbeta, &p.da_log, &p.ddt_bias, &p.ds0}) {
    EXPECT_TRUE(x->AllFinite());
  }
}

TEST(Gdn, PaddingIsNeitherReadNorLeftUnwritten) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Problem p({.cu = {0, 4, 7}, .padding = 2});
  for (TestTensor* x : {&p.q, &p.k, &p.v, &p.a, &p.beta, &p.d_o}) {
    const int64_t row = x->size() / p.t;
    for (int64_t i = 7 * row; i < x->size(); ++i) x->Set(i, nan);
  }
  for (TestTensor* x : {&p.o, &p.dq, &p.dk, &p.dv, &p.da, &p.dbeta})
    for (int64_t i = 0; i < x->size(); ++i) x->Set(i, nan);
  ASSERT_OK(GdnForward({}, p.Forward()));
  ASSERT_OK(GdnBackward({}, p.Backward()));
  for (TestTensor* x : {&p.o, &p.dq, &p.dk, &p.dv, &p.da, &p.dbeta}) {
    EXPECT_TRUE(x->AllFinite());
    EXPECT_EQ(x->Get(x->size() - 1), 0);
  }
}

TEST(Gdn, RefusesHeadsThatDoNotDivide) {
  Problem p({.cu = {0, 4}, .key_heads = 3, .repeats = 1});
  TestTensor v = TestTensor::Zeros(kF64, {4, 4, 3});
  GdnForwardArgs args = p.Forward();
  args.in.v = v.view();
  EXPECT_THAT(
      GdnForward({}, args),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("4 value heads do not divide evenly among 3")));
}

}  // namespace
}  // namespace cadre
