#ifndef CADRE_KERNELS_KDA_TEST_RECURRENCE_H_
#define CADRE_KERNELS_KDA_TEST_RECURRENCE_H_

// What KDA's tests compare it with. Stateless.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/kda/test_problem.h"

namespace cadre::kda_test {

// The recurrence as written, and its reverse by hand, state after state. Shares
// nothing with the code under test.
struct Naive {
  explicit Naive(const Problem& p) {
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

inline void ExpectNear(const char* name, const TestTensor& got,
                       const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(want.size())) << name;
  double largest = 1e-3;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (int64_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got.Get(i), want[i], tolerance * largest) << name << " " << i;
}

inline void ExpectNaive(const Problem& p, double tolerance) {
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

}  // namespace cadre::kda_test

#endif  // CADRE_KERNELS_KDA_TEST_RECURRENCE_H_
