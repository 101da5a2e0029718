#ifndef CADRE_KERNELS_KDA_TEST_PROBLEM_H_
#define CADRE_KERNELS_KDA_TEST_PROBLEM_H_

// Random inputs of KDA on the host, and room for all outputs, for its tests.
// Not thread-safe.

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/common/test_tensor.h"
#include "kernels/kda/kda.h"

namespace cadre::kda_test {

using ::cadre::testing::TestTensor;

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
  explicit Problem(const Shape& shape, DType dtype = DType::kF64)
      : shape(shape) {
    t = shape.cu.back() + shape.padding;
    const int64_t docs = static_cast<int64_t>(shape.cu.size()) - 1;
    const int64_t h = shape.heads, k = shape.key_dim, v = shape.value_dim;
    auto random = [&](std::vector<int64_t> dims, int seed, double stddev = 1,
                      double mean = 0) {
      // Drawn in float64 whatever the dtype, so that dtypes can be compared.
      return TestTensor::Random(DType::kF64, dims, seed, stddev, mean)
          .As(dtype);
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
      const int64_t first = row * d, end = first + d;
      for (int64_t i = first; i < end; ++i) squares += x.Get(i) * x.Get(i);
      for (int64_t i = first; i < end; ++i)
        x.Set(i, x.Get(i) / std::sqrt(squares + 1e-6));
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

}  // namespace cadre::kda_test

#endif  // CADRE_KERNELS_KDA_TEST_PROBLEM_H_
