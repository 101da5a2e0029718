#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/status_matchers.h"
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

struct Shape {
  int64_t tokens, heads, kv_heads, qk_dim, v_dim;
  std::vector<int32_t> cu;
};

struct Attention {
  explicit Attention(const Shape& shape, DType dtype = DType::kF64,
                     double stddev = 1)
      : shape(shape),
        cu(TestTensor::Table(shape.cu)),
        q(TestTensor::Random(dtype, {shape.tokens, shape.heads, shape.qk_dim},
                             1, stddev)),
        k(TestTensor::Random(
            dtype, {shape.tokens, shape.kv_heads, shape.qk_dim}, 2, stddev)),
        v(TestTensor::Random(dtype, {shape.tokens, shape.kv_heads, shape.v_dim},
                             3, stddev)),
        d_o(TestTensor::Random(dtype, {shape.tokens, shape.heads, shape.v_dim},
                               4)),
        o(TestTensor::Full(dtype, {shape.tokens, shape.heads, shape.v_dim}, 9)),
        lse(TestTensor::Zeros(dtype, {shape.tokens, shape.heads})),
        dq(q),
        dk(k),
        dv(v) {}

  // Each query keeps the keys of its document for which keep(t, s) is true.
  template <typename Keep>
  void Select(int64_t width, const Keep& keep) {
    selected = TestTensor::Full(DType::kI32, {shape.tokens, width}, -1);
    num_valid = TestTensor::Zeros(DType::kI32, {shape.tokens});
    for (size_t doc = 0; doc + 1 < shape.cu.size(); ++doc) {
      for (int64_t t = shape.cu[doc]; t < shape.cu[doc + 1]; ++t) {
        int64_t count = 0;
        for (int64_t s = 0; s <= t - shape.cu[doc]; ++s) {
          if (keep(t, s)) selected.Set(t * width + count++, s);
        }
        num_valid.Set(t, count);
      }
    }
    sparse = true;
  }
  bool Allowed(int64_t doc, int64_t t, int64_t s) const {
    if (!sparse) return s <= t - shape.cu[doc];
    const int64_t width = selected.size() / shape.tokens;
    for (int64_t i = 0; i < num_valid.Get(t); ++i) {
      if (selected.Get(t * width + i) == s) return true;
    }
    return false;
  }

  AttentionForwardArgs ForwardArgs() {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .cu_seqlens = cu.view(),
            .scale = scale,
            .selected = sparse ? selected.view() : Tensor(),
            .num_valid = sparse ? num_valid.view() : Tensor(),
            .o = o.view(),
            .lse = lse.view()};
  }
  absl::Status Backward(const Exec& exec = {}) {
    return AttentionBackward(exec,
                             {.q = q.view(),
                              .k = k.view(),
                              .v = v.view(),
                              .cu_seqlens = cu.view(),
                              .scale = scale,
                              .selected = sparse ? selected.view() : Tensor(),
                              .num_valid = sparse ? num_valid.view() : Tensor(),
                              .o = o.view(),
                              .lse = lse.view(),
                              .d_o = d_o.view(),
                              .dq = dq.view(),
                              .dk = dk.view(),
                              .dv = dv.view()});
  }
  // The definition as plain loops.
  TestTensor Naive() const {
    TestTensor out = TestTensor::Zeros(
        DType::kF64, {shape.tokens, shape.heads, shape.v_dim});
    for (size_t doc = 0; doc + 1 < shape.cu.size(); ++doc) {
      for (int64_t t = shape.cu[doc]; t < shape.cu[doc + 1]; ++t) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t g = h * shape.kv_heads / shape.heads;
          double sum = 0;
          std::vector<double> row(shape.v_dim);
          for (int64_t s = shape.cu[doc]; s <= t; ++s) {
            if (!Allowed(doc, t, s - shape.cu[doc])) continue;
            double score = 0;
            for (int64_t d = 0; d < shape.qk_dim; ++d) {
              score += q.Get((t * shape.heads + h) * shape.qk_dim + d) *
                       k.Get((s * shape.kv_heads + g) * shape.qk_dim + d);
            }
            const double e = std::exp(scale * score);
            sum += e;
            for (int64_t d = 0; d < shape.v_dim; ++d) {
              row[d] += e * v.Get((s * shape.kv_heads + g) * shape.v_dim + d);
            }
          }
          for (int64_t d = 0; d < shape.v_dim && sum > 0; ++d)
            out.Set((t * shape.heads + h) * shape.v_dim + d, row[d] / sum);
        }
      }
    }
    return out;
  }
  void CheckGradients() {
    ASSERT_OK(AttentionForward({}, ForwardArgs()));
    ASSERT_OK(Backward());
    ExpectGradients(
        [&] {
          EXPECT_OK(AttentionForward({}, ForwardArgs()));
          return Dot(o, d_o);
        },
        {{"q", q.view(), dq.view()},
         {"k", k.view(), dk.view()},
         {"v", v.view(), dv.view()}});
  }

  Shape shape;
  double scale = 0.4;
  bool sparse = false;
  TestTensor cu, q, k, v, d_o, o, lse, dq, dk, dv;
  TestTensor selected = TestTensor::Table({}), num_valid = selected;
};

// An empty document, one token, one longer than a block of queries, padding.
const Shape kPacked = {80, 4, 2, 5, 3, {0, 1, 1, 70, 77}};

TEST(AttentionTest, ForwardMatchesTheDefinition) {
  Attention a(kPacked);
  ASSERT_OK(AttentionForward({}, a.ForwardArgs()));
  EXPECT_LT(RelativeError(a.o, a.Naive()), 1e-13);
  Attention f(kPacked, DType::kF32);
  ASSERT_OK(AttentionForward({}, f.ForwardArgs()));
  EXPECT_LT(RelativeError(f.o, a.o), 1e-5);
}

TEST(AttentionTest, BackwardMatchesFiniteDifferences) {
  Attention(kPacked).CheckGradients();
  Attention({9, 3, 3, 4, 6, {0, 4, 9}}).CheckGradients();
  Attention({6, 4, 1, 2, 2, {0, 6}}).CheckGradients();
}

TEST(AttentionTest, SelectedKeysAreTheOnlyOnesRead) {
  Attention a(kPacked);
  a.Select(24, [](int64_t t, int64_t s) { return (t + 2 * s) % 3 == 0; });
  ASSERT_OK(AttentionForward({}, a.ForwardArgs()));
  EXPECT_LT(RelativeError(a.o, a.Naive()), 1e-13);
  a.CheckGradients();
}

TEST(AttentionTest, SelectingAllKeysIsDense) {
  Attention dense(kPacked), sparse(kPacked);
  sparse.Select(69, [](int64_t, int64_t) { return true; });
  ASSERT_OK(AttentionForward({}, dense.ForwardArgs()));
  ASSERT_OK(AttentionForward({}, sparse.ForwardArgs()));
  ASSERT_OK(dense.Backward());
  ASSERT_OK(sparse.Backward());
  EXPECT_EQ(RelativeError(sparse.o, dense.o), 0);
  EXPECT_EQ(RelativeError(sparse.dk, dense.dk), 0);
}

TEST(AttentionTest, ARowWithoutKeysIsZeroAndHasNoGradient) {
  Attention a({4, 1, 1, 2, 2, {0, 4}});
  a.Select(2, [](int64_t t, int64_t s) { return t != 2 && s == 0; });
  ASSERT_OK(AttentionForward({}, a.ForwardArgs()));
  ASSERT_OK(a.Backward());
  EXPECT_EQ(a.o.Get(4), 0);
  EXPECT_EQ(a.lse.Get(2), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(a.dq.Get(4), 0);
  EXPECT_TRUE(a.dk.AllFinite());
}

TEST(AttentionTest, PaddingIsZeroInBothDirections) {
  Attention a(kPacked);
  ASSERT_OK(AttentionForward({}, a.ForwardArgs()));
  ASSERT_OK(a.Backward());
  for (int64_t i = 77 * 4 * 3; i < a.o.size(); ++i) EXPECT_EQ(a.o.Get(i), 0);
  for (int64_t i = 77 * 4 * 5; i < a.dq.size(); ++i) EXPECT_EQ(a.dq.Get(i), 0);
  for (int64_t i = 77 * 2 * 5; i < a.dk.size(); ++i) EXPECT_EQ(a.dk.Get(i), 0);
  for (int64_t i = 77 * 2 * 3; i < a.dv.size(); ++i) EXPECT_EQ(a.dv.Get(i), 0);
}

TEST(AttentionTest, ThreadsChangeNoBit) {
  ThreadPool pool(2);
  Attention a(kPacked, DType::kF32), b(kPacked, DType::kF32);
  ASSERT_OK(AttentionForward({.pool = &pool}, a.ForwardArgs()));
  ASSERT_OK(AttentionForward({}, b.ForwardArgs()));
  ASSERT_OK(a.Backward({.pool = &pool}));
  ASSERT_OK(b.Backward());
  EXPECT_EQ(RelativeError(a.o, b.o), 0);
  EXPECT_EQ(RelativeError(a.dq, b.dq), 0);
  EXPECT_EQ(RelativeError(a.dk, b.dk), 0);
  EXPECT_EQ(RelativeError(a.dv, b.dv), 0);
}

TEST(AttentionTest, MassiveActivationsStayFinite) {
  Attention a(kPacked, DType::kF32, /*stddev=*/600);
  ASSERT_OK(AttentionForward({}, a.ForwardArgs()));
  ASSERT_OK(a.Backward());
  EXPECT_TRUE(a.o.AllFinite());
  EXPECT_TRUE(a.dq.AllFinite());
  EXPECT_TRUE(a.dk.AllFinite());
  EXPECT_TRUE(a.dv.AllFinite());
}

TEST(AttentionTest, AcceptsNoTokensAndNamesAKeyOfTheFuture) {
  Attention none({0, 2, 1, 3, 3, {0}});
  EXPECT_OK(AttentionForward({}, none.ForwardArgs()));
  EXPECT_OK(none.Backward());
  Attention a({3, 1, 1, 2, 2, {0, 3}});
  a.Select(2, [](int64_t, int64_t s) { return s == 0; });
  a.selected.Set(2, 2);
  EXPECT_THAT(AttentionForward({}, a.ForwardArgs()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("selected[1,0] is 2")));
}

}  // namespace
}  // namespace cadre
