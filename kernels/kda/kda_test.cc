#include "kernels/kda/kda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

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
  int64_t heads = 2;
  int64_t key_dim = 5;
  int64_t value_dim = 3;
  std::optional<double> lower_bound = {};
  double z_mean = -2;
  double z_stddev = 1;
  double scale = 1;  // of v and the states
};

// One call of each direction with all its tensors.
struct Problem {
  explicit Problem(const Shape& shape, DType dtype = kF64) : shape(shape) {
    t = shape.cu.back() + shape.padding;
    const int64_t docs = static_cast<int64_t>(shape.cu.size()) - 1;
    const int64_t h = shape.heads, k = shape.key_dim, v = shape.value_dim;
    auto random = [&](std::vector<int64_t> dims, int seed, double stddev = 1,
                      double mean = 0) {
      // Drawn in float64 whatever the dtype, so that dtypes can be compared.
      return TestTensor::Random(kF64, dims, seed, stddev, mean).As(dtype);
    };
    cu = TestTensor::Table(shape.cu);
    q = Unit(random({t, h, k}, 1), k);
    this->k = Unit(random({t, h, k}, 2), k);
    this->v = random({t, h, v}, 3, shape.scale);
    z = random({t, h, k}, 4, shape.z_stddev, shape.z_mean);
    beta = random({t, h}, 5, 2);
    a_log = random({h}, 6, 0.5, 0.5);
    dt_bias = random({h * k}, 7, 0.3);
    s0 = random({docs, h, k, v}, 8, shape.scale);
    d_o = random({t, h, v}, 9);
    ds_end = random({docs, h, k, v}, 10);
    o = random({t, h, v}, 11);
    s_end = random({docs, h, k, v}, 12);
    dq = dk = dz = random({t, h, k}, 13);
    dv = o;
    dbeta = random({t, h}, 14);
    ds0 = s_end;
    da_log = TestTensor::Zeros(dtype, {h});
    ddt_bias = TestTensor::Zeros(dtype, {h * k});
  }

  static TestTensor Unit(TestTensor x, int64_t d) {
    for (int64_t row = 0; row < x.size() / d; ++row) {
      double squares = 0;
      for (int64_t i = 0; i < d; ++i)
        squares += x.Get(row * d + i) * x.Get(row * d + i);
      for (int64_t i = 0; i < d; ++i)
        x.Set(row * d + i, x.Get(row * d + i) / std::sqrt(squares + 1e-6));
    }
    return x;
  }

  KdaInputs Inputs() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .z = z.view(),
            .beta = beta.view(),
            .a_log = a_log.view(),
            .dt_bias = dt_bias.view(),
            .cu_seqlens = cu.view(),
            .lower_bound = shape.lower_bound,
            .initial_state = s0.view()};
  }
  KdaForwardArgs Forward() {
    return {.in = Inputs(), .o = o.view(), .final_state = s_end.view()};
  }
  KdaBackwardArgs Backward() {
    return {.in = Inputs(),
            .d_o = d_o.view(),
            .d_final_state = ds_end.view(),
            .dq = dq.view(),
            .dk = dk.view(),
            .dv = dv.view(),
            .dz = dz.view(),
            .dbeta = dbeta.view(),
            .da_log = da_log.view(),
            .ddt_bias = ddt_bias.view(),
            .d_initial_state = ds0.view()};
  }

  Shape shape;
  int64_t t;
  TestTensor cu = TestTensor::Zeros(DType::kI32, {0});
  TestTensor q = cu, k = cu, v = cu, z = cu, beta = cu, a_log = cu,
             dt_bias = cu, s0 = cu, d_o = cu, ds_end = cu, o = cu, s_end = cu,
             dq = cu, dk = cu, dv = cu, dz = cu, dbeta = cu, ds0 = cu,
             da_log = cu, ddt_bias = cu;
};

// The recurrence as written, and its reverse by hand, state after state. Shares
// nothing with the code under test.
struct Naive {
  explicit Naive(Problem& p) {
    const Shape& shape = p.shape;
    const int64_t h = shape.heads, nk = shape.key_dim, nv = shape.value_dim;
    auto zeros = [](const TestTensor& like) {
      return std::vector<double>(like.size(), 0.0);
    };
    o = zeros(p.o), s_end = zeros(p.s_end), dq = zeros(p.dq), dk = zeros(p.dk);
    dv = zeros(p.dv), dz = zeros(p.dz), dbeta = zeros(p.dbeta);
    da_log = zeros(p.da_log), ddt_bias = zeros(p.ddt_bias), ds0 = zeros(p.ds0);
    const double scale = 1 / std::sqrt(static_cast<double>(nk));
    auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    for (size_t doc = 0; doc + 1 < shape.cu.size(); ++doc) {
      for (int64_t head = 0; head < h; ++head) {
        const int64_t begin = shape.cu[doc], n = shape.cu[doc + 1] - begin;
        const int64_t state0 = (doc * h + head) * nk * nv;
        const double rate = std::exp(p.a_log.Get(head));
        auto ki = [&](int64_t t, int64_t i) {
          return ((begin + t) * h + head) * nk + i;
        };
        auto vi = [&](int64_t t, int64_t j) {
          return ((begin + t) * h + head) * nv + j;
        };
        auto si = [&](int64_t t) { return (begin + t) * h + head; };
        auto logit = [&](int64_t t, int64_t i) {
          return p.z.Get(ki(t, i)) + p.dt_bias.Get(head * nk + i);
        };
        auto log_decay = [&](int64_t t, int64_t i) {
          const double x = logit(t, i);
          if (shape.lower_bound) return *shape.lower_bound * sigmoid(rate * x);
          return -rate * (x > 20 ? x : std::log1p(std::exp(x)));
        };
        // states[t] enters token t.
        std::vector<std::vector<double>> states(n + 1), decayed(n), errors(n);
        states[0].resize(nk * nv);
        for (int64_t i = 0; i < nk * nv; ++i)
          states[0][i] = p.s0.Get(state0 + i);
        for (int64_t t = 0; t < n; ++t) {
          auto s = states[t];
          const double b = sigmoid(p.beta.Get(si(t)));
          for (int64_t i = 0; i < nk; ++i)
            for (int64_t j = 0; j < nv; ++j)
              s[i * nv + j] *= std::exp(log_decay(t, i));
          decayed[t] = s;
          std::vector<double> e(nv);
          for (int64_t j = 0; j < nv; ++j) {
            e[j] = p.v.Get(vi(t, j));
            for (int64_t i = 0; i < nk; ++i)
              e[j] -= s[i * nv + j] * p.k.Get(ki(t, i));
          }
          errors[t] = e;
          for (int64_t i = 0; i < nk; ++i)
            for (int64_t j = 0; j < nv; ++j)
              s[i * nv + j] += b * p.k.Get(ki(t, i)) * e[j];
          for (int64_t j = 0; j < nv; ++j)
            for (int64_t i = 0; i < nk; ++i)
              o[vi(t, j)] += scale * s[i * nv + j] * p.q.Get(ki(t, i));
          states[t + 1] = s;
        }
        std::vector<double> ds(nk * nv);
        for (int64_t i = 0; i < nk * nv; ++i) {
          s_end[state0 + i] = states[n][i];
          ds[i] = p.ds_end.Get(state0 + i);
        }
        for (int64_t t = n - 1; t >= 0; --t) {
          const double b = sigmoid(p.beta.Get(si(t)));
          std::vector<double> de(nv, 0.0);
          double db = 0;
          for (int64_t i = 0; i < nk; ++i) {
            const double key = p.k.Get(ki(t, i));
            for (int64_t j = 0; j < nv; ++j) {
              const double dout = p.d_o.Get(vi(t, j));
              dq[ki(t, i)] += scale * states[t + 1][i * nv + j] * dout;
              ds[i * nv + j] += scale * p.q.Get(ki(t, i)) * dout;
              de[j] += b * key * ds[i * nv + j];
              db += key * ds[i * nv + j] * errors[t][j];
              dk[ki(t, i)] += b * ds[i * nv + j] * errors[t][j];
            }
          }
          dbeta[si(t)] = db * b * (1 - b);
          for (int64_t j = 0; j < nv; ++j) dv[vi(t, j)] = de[j];
          for (int64_t i = 0; i < nk; ++i) {
            const double a = std::exp(log_decay(t, i));
            double da = 0;
            for (int64_t j = 0; j < nv; ++j) {
              dk[ki(t, i)] -= decayed[t][i * nv + j] * de[j];
              ds[i * nv + j] -= p.k.Get(ki(t, i)) * de[j];
              da += ds[i * nv + j] * states[t][i * nv + j];
              ds[i * nv + j] *= a;
            }
            const double dg = da * a, x = logit(t, i);
            double dx;
            if (shape.lower_bound) {
              const double s = sigmoid(rate * x);
              dx = dg * *shape.lower_bound * s * (1 - s) * rate;
              da_log[head] += dx * x;
            } else {
              dx = -dg * rate * sigmoid(x);
              da_log[head] += dg * log_decay(t, i);
            }
            dz[ki(t, i)] = dx;
            ddt_bias[head * nk + i] += dx;
          }
        }
        for (int64_t i = 0; i < nk * nv; ++i) ds0[state0 + i] = ds[i];
      }
    }
  }

  std::vector<double> o, s_end, dq, dk, dv, dz, dbeta, da_log, ddt_bias, ds0;
};

void ExpectNear(const char* name, const TestTensor& got,
                const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(want.size())) << name;
  double largest = 1e-3;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (int64_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got.Get(i), want[i], tolerance * largest) << name << " " << i;
}

void ExpectNaive(Problem& p, double tolerance) {
  const Naive naive(p);
  ExpectNear("o", p.o, naive.o, tolerance);
  ExpectNear("final_state", p.s_end, naive.s_end, tolerance);
  ExpectNear("dq", p.dq, naive.dq, tolerance);
  ExpectNear("dk", p.dk, naive.dk, tolerance);
  ExpectNear("dv", p.dv, naive.dv, tolerance);
  ExpectNear("dz", p.dz, naive.dz, tolerance);
  ExpectNear("dbeta", p.dbeta, naive.dbeta, tolerance);
  ExpectNear("da_log", p.da_log, naive.da_log, tolerance);
  ExpectNear("ddt_bias", p.ddt_bias, naive.ddt_bias, tolerance);
  ExpectNear("d_initial_state", p.ds0, naive.ds0, tolerance);
}

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
    EXPECT_LE(RelativeError(single.o, full.o), 3e-6);
    EXPECT_LE(RelativeError(single.s_end, full.s_end), 3e-6);
    EXPECT_LE(RelativeError(single.dq, full.dq), 3e-6);
    EXPECT_LE(RelativeError(single.dk, full.dk), 3e-6);
    EXPECT_LE(RelativeError(single.dv, full.dv), 3e-6);
    EXPECT_LE(RelativeError(single.dz, full.dz), 1e-5);
    EXPECT_LE(RelativeError(single.dbeta, full.dbeta), 1e-5);
    EXPECT_LE(RelativeError(single.ds0, full.ds0), 3e-6);
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
    EXPECT_LE(RelativeError(single.o, full.o), 3e-6);
    EXPECT_LE(RelativeError(single.s_end, full.s_end), 3e-6);
    EXPECT_LE(RelativeError(single.dq, full.dq), 3e-6);
    EXPECT_LE(RelativeError(single.dk, full.dk), 3e-6);
    EXPECT_LE(RelativeError(single.dv, full.dv), 3e-6);
    EXPECT_LE(RelativeError(single.dz, full.dz), 1e-5);
    EXPECT_LE(RelativeError(single.dbeta, full.dbeta), 1e-5);
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
