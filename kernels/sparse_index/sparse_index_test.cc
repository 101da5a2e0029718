#include "kernels/sparse_index/sparse_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Index {
  Index(std::vector<int32_t> cu_values, int64_t tokens, int64_t heads,
        int64_t width, int64_t topk, int64_t kpool, DType dtype = DType::kF64)
      : tokens(tokens),
        topk(topk),
        kpool(kpool),
        cu_values(cu_values),
        cu(TestTensor::Table(cu_values)),
        q(TestTensor::Random(dtype, {tokens, heads, width}, 1)),
        k(TestTensor::Random(dtype, {tokens, width}, 2)),
        omega(TestTensor::Random(dtype, {tokens, heads}, 3)),
        gate(TestTensor::Random(dtype, {tokens, width}, 4)),
        ape(TestTensor::Random(dtype, {kpool, width}, 5)),
        selected(TestTensor::Full(DType::kI32,
                                  {tokens, IndexWidth(topk, kpool)}, 77)),
        num_valid(TestTensor::Full(DType::kI32, {tokens}, 77)) {}

  absl::Status Run(const Exec& exec = {}) {
    return SparseIndex(exec, {.q = q.view(),
                              .k = k.view(),
                              .head_weight = omega.view(),
                              .cu_seqlens = cu.view(),
                              .topk = topk,
                              .kpool = kpool,
                              .pool_gate = kpool > 0 ? gate.view() : Tensor(),
                              .pool_ape = kpool > 0 ? ape.view() : Tensor(),
                              .selected = selected.view(),
                              .num_valid = num_valid.view()});
  }
  // The valid part of row t; the rest must be -1.
  std::vector<int> Row(int64_t t) const {
    const int64_t width = IndexWidth(topk, kpool);
    std::vector<int> row;
    for (int64_t i = 0; i < width; ++i) {
      const int s = static_cast<int>(selected.Get(t * width + i));
      if (i < num_valid.Get(t)) {
        row.push_back(s);
      } else {
        EXPECT_EQ(s, -1) << t;
      }
    }
    return row;
  }
  double Score(int64_t t, const std::vector<double>& key) const {
    const int64_t heads = omega.size() / tokens;
    const int64_t width = static_cast<int64_t>(key.size());
    double score = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t d = 0; d < width; ++d)
        dot += q.Get((t * heads + h) * width + d) * key[d];
      score += omega.Get(t * heads + h) *
               std::max(0.0, dot / std::sqrt(static_cast<double>(width)));
    }
    return score;
  }
  // The definition, by a full sort. `keys` are candidates in index order.
  std::vector<int> Best(int64_t t, const std::vector<std::vector<double>>& keys,
                        int64_t count) const {
    std::vector<std::pair<double, int>> order;
    for (size_t s = 0; s < keys.size(); ++s)
      order.emplace_back(-Score(t, keys[s]), static_cast<int>(s));
    std::sort(order.begin(), order.end());
    std::vector<int> out;
    for (int64_t i = 0; i < std::min<int64_t>(count, order.size()); ++i)
      out.push_back(order[i].second);
    std::sort(out.begin(), out.end());
    return out;
  }
  std::vector<double> Key(int64_t t) const {
    const int64_t width = k.size() / tokens;
    std::vector<double> out;
    for (int64_t d = 0; d < width; ++d) out.push_back(k.Get(t * width + d));
    return out;
  }
  std::vector<double> PooledKey(int64_t first) const {
    const int64_t width = k.size() / tokens;
    std::vector<double> out;
    for (int64_t d = 0; d < width; ++d) {
      double sum = 0, mixed = 0;
      for (int64_t j = 0; j < kpool; ++j) {
        const double e = std::exp(gate.Get((first + j) * width + d) +
                                  ape.Get(j * width + d));
        sum += e;
        mixed += e * k.Get((first + j) * width + d);
      }
      out.push_back(mixed / sum);
    }
    return out;
  }

  int64_t tokens, topk, kpool;
  std::vector<int32_t> cu_values;
  TestTensor cu, q, k, omega, gate, ape, selected, num_valid;
};

TEST(SparseIndexTest, TokensMatchAFullSortInsideEachDocument) {
  ThreadPool pool(2);
  Index x({0, 3, 3, 30}, 33, 4, 6, /*topk=*/8, /*kpool=*/0);
  ASSERT_OK(x.Run({.pool = &pool}));
  for (size_t doc = 0; doc + 1 < x.cu_values.size(); ++doc) {
    std::vector<std::vector<double>> keys;
    for (int64_t t = x.cu_values[doc]; t < x.cu_values[doc + 1]; ++t) {
      keys.push_back(x.Key(t));
      EXPECT_EQ(x.Row(t), x.Best(t, keys, 8)) << t;
    }
  }
  for (int64_t t = 30; t < 33; ++t) EXPECT_THAT(x.Row(t), IsEmpty());
}

TEST(SparseIndexTest, PoolsMatchTheDefinitionAndTheTailIsAlwaysAdded) {
  for (int64_t pool : {1, 2, 4}) {
    Index x({0, 5, 43}, 43, 3, 5, /*topk=*/8, pool);
    ASSERT_OK(x.Run());
    for (size_t doc = 0; doc + 1 < x.cu_values.size(); ++doc) {
      const int64_t begin = x.cu_values[doc];
      std::vector<std::vector<double>> keys;
      for (int64_t t = begin; t < x.cu_values[doc + 1]; ++t) {
        const int64_t visible = t - begin + 1;
        if (visible % pool == 0)
          keys.push_back(x.PooledKey(begin + visible - pool));
        std::vector<int> expected;
        for (int p : x.Best(t, keys, 8 / pool)) {
          for (int64_t j = 0; j < pool; ++j) expected.push_back(p * pool + j);
        }
        for (int64_t s = visible / pool * pool; s < visible; ++s)
          expected.push_back(s);
        EXPECT_EQ(x.Row(t), expected) << t << " with pools of " << pool;
      }
    }
  }
}

// Documents far longer than the selection: every query keeps exactly topk keys
// and float32 chooses what float64 does wherever the scores are apart.
TEST(SparseIndexTest, LongDocumentsKeepTheBestKeysInFloat32) {
  constexpr int64_t kLong = 6000, kTopk = 64;
  for (int64_t pool : {0, 4}) {
    Index full({0, kLong, kLong + 7}, kLong + 7, 2, 8, kTopk, pool);
    Index single = full;
    for (TestTensor* x :
         {&single.q, &single.k, &single.omega, &single.gate, &single.ape}) {
      *x = x->As(DType::kF32);
    }
    // The same values for both.
    for (auto member :
         {&Index::q, &Index::k, &Index::omega, &Index::gate, &Index::ape}) {
      full.*member = (single.*member).As(DType::kF64);
    }
    ASSERT_OK(full.Run());
    ASSERT_OK(single.Run());
    int64_t differing = 0;
    for (int64_t t = 0; t < kLong; ++t) {
      const std::vector<int> ours = single.Row(t);
      const int64_t tail = pool > 0 ? (t + 1) % pool : 0;
      ASSERT_EQ(static_cast<int64_t>(ours.size()),
                std::min(kTopk + tail, t + 1));
      EXPECT_LE(ours.back(), t);
      differing += ours != full.Row(t);
    }
    // Scores closer than float32 can tell: rare, and never many in one row.
    EXPECT_LE(differing, kLong / 500) << pool;
    // The second document's positions start anew.
    EXPECT_EQ(single.Row(kLong + 6), full.Row(kLong + 6));
    EXPECT_EQ(single.Row(kLong + 6).size(), 7u);
    // The definition, for the last query of the long document.
    std::vector<std::vector<double>> keys;
    for (int64_t s = 0; s < kLong; s += std::max<int64_t>(pool, 1)) {
      keys.push_back(pool > 0 ? full.PooledKey(s) : full.Key(s));
    }
    std::vector<int> expected;
    const int64_t step = std::max<int64_t>(pool, 1);
    for (int best : full.Best(kLong - 1, keys, kTopk / step)) {
      for (int64_t j = 0; j < step; ++j) {
        expected.push_back(static_cast<int>(best * step + j));
      }
    }
    EXPECT_EQ(full.Row(kLong - 1), expected);
  }
}

TEST(SparseIndexTest, TiesGoToTheLowerKey) {
  // All keys equal, then all scores zero by ReLU, then -0 beside +0.
  Index x({0, 9}, 9, 2, 3, /*topk=*/4, /*kpool=*/0);
  for (int64_t i = 0; i < x.k.size(); ++i) x.k.Set(i, 0.5);
  ASSERT_OK(x.Run());
  EXPECT_THAT(x.Row(8), ElementsAre(0, 1, 2, 3));
  for (int64_t i = 0; i < x.q.size(); ++i) x.q.Set(i, -1);
  ASSERT_OK(x.Run());
  EXPECT_THAT(x.Row(8), ElementsAre(0, 1, 2, 3));

  Index z({0, 4}, 4, 1, 1, /*topk=*/2, /*kpool=*/0);
  z.q = TestTensor::Full(DType::kF64, {4, 1, 1}, 1);
  z.omega = TestTensor::Full(DType::kF64, {4, 1}, -1);
  // Scores -0, -1, -0, -0 : omega * max(0, .) gives negative zeros.
  z.k = TestTensor::Of(DType::kF64, {4, 1}, {-0.0, 1, 0.0, -3});
  ASSERT_OK(z.Run());
  EXPECT_THAT(z.Row(3), ElementsAre(0, 2));
}

TEST(SparseIndexTest, EqualKeysTieExactlyAtAnyWidthInFloat32) {
  Index x({0, 70}, 70, 5, 67, /*topk=*/16, /*kpool=*/0, DType::kF32);
  for (int64_t t = 1; t < 70; ++t) {
    for (int64_t d = 0; d < 67; ++d) x.k.Set(t * 67 + d, x.k.Get(d));
  }
  ASSERT_OK(x.Run());
  for (int64_t t = 16; t < 70; ++t) EXPECT_EQ(x.Row(t).back(), 15) << t;
}

TEST(SparseIndexTest, FewVisibleKeysAreAllKept) {
  Index x({0, 6}, 6, 2, 3, /*topk=*/8, /*kpool=*/4);
  ASSERT_OK(x.Run());
  EXPECT_THAT(x.Row(0), ElementsAre(0));
  EXPECT_THAT(x.Row(2), ElementsAre(0, 1, 2));
  EXPECT_THAT(x.Row(5), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(SparseIndexTest, TheCurrentTokenIsMissingWhenItsPoolIsNotChosen) {
  Index x({0, 4}, 4, 1, 1, /*topk=*/2, /*kpool=*/2);
  x.q = TestTensor::Full(DType::kF64, {4, 1, 1}, 1);
  x.omega = TestTensor::Full(DType::kF64, {4, 1}, 1);
  x.k = TestTensor::Of(DType::kF64, {4, 1}, {5, 5, 1, 1});
  ASSERT_OK(x.Run());
  EXPECT_THAT(x.Row(3), ElementsAre(0, 1));
  EXPECT_THAT(x.Row(2), ElementsAre(0, 1, 2));
}

TEST(SparseIndexTest, AcceptsNoTokensAndRefusesAPoolThatDoesNotDivide) {
  Index none({0}, 0, 2, 3, 4, 2);
  EXPECT_OK(none.Run());
  Index x({0, 4}, 4, 1, 2, /*topk=*/6, /*kpool=*/4);
  EXPECT_THAT(x.Run(), StatusIs(absl::StatusCode::kInvalidArgument));
  static_assert(IndexWidth(2048, 4) == 2051);
  static_assert(IndexWidth(2048, 0) == 2048);
}

}  // namespace
}  // namespace cadre
