#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gemm/tile_cpu.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

// Small integers, so that every sum is exact and == is the test.
TestTensor Integers(DType dtype, std::vector<int64_t> dims, int seed) {
  TestTensor out = TestTensor::Zeros(dtype, std::move(dims));
  for (int64_t i = 0; i < out.size(); ++i)
    out.Set(i, (i * 7 + seed * 13 + i * i % 11) % 9 - 4);
  return out;
}

void ExpectProduct(const Exec& exec, DType dtype, int64_t m, int64_t n,
                   int64_t k, bool trans_a, bool trans_b, double alpha,
                   double beta) {
  SCOPED_TRACE(::testing::Message()
               << m << "x" << n << "x" << k << " " << trans_a << trans_b);
  TestTensor a =
      trans_a ? Integers(dtype, {k, m}, 1) : Integers(dtype, {m, k}, 1);
  TestTensor b =
      trans_b ? Integers(dtype, {n, k}, 2) : Integers(dtype, {k, n}, 2);
  TestTensor c = Integers(dtype, {m, n}, 3);
  const TestTensor before = c;
  ASSERT_OK(Gemm(exec, {.a = a.view(),
                        .b = b.view(),
                        .c = c.view(),
                        .trans_a = trans_a,
                        .trans_b = trans_b,
                        .alpha = alpha,
                        .beta = beta}));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a.Get(trans_a ? l * m + i : i * k + l) *
               b.Get(trans_b ? j * k + l : l * n + j);
      }
      ASSERT_EQ(c.Get(i * n + j), alpha * sum + beta * before.Get(i * n + j))
          << i << ", " << j;
    }
  }
}

TEST(Gemm, EqualsTheDefinition) {
  ThreadPool pool(3);
  const Exec exec{.pool = &pool};
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (bool trans_a : {false, true}) {
      for (bool trans_b : {false, true}) {
        ExpectProduct(exec, dtype, 1, 1, 1, trans_a, trans_b, 1, 0);
        ExpectProduct(exec, dtype, 3, 17, 5, trans_a, trans_b, 2, 1);
        ExpectProduct(exec, dtype, 127, 64, 33, trans_a, trans_b, 1, -2);
        ExpectProduct(exec, dtype, 300, 65, 127, trans_a, trans_b, 0.5, 0);
        ExpectProduct(exec, dtype, 0, 4, 4, trans_a, trans_b, 1, 0);
        ExpectProduct(exec, dtype, 4, 0, 4, trans_a, trans_b, 1, 0);
        ExpectProduct(exec, dtype, 4, 4, 0, trans_a, trans_b, 1, 0);
        ExpectProduct(exec, dtype, 4, 4, 0, trans_a, trans_b, 1, 2);
      }
    }
  }
}

TEST(Gemm, BetaZeroDoesNotReadTheResult) {
  for (int64_t k : {0, 4}) {
    TestTensor a = Integers(DType::kF32, {3, k}, 1);
    TestTensor b = Integers(DType::kF32, {k, 5}, 2);
    TestTensor c = TestTensor::Full(DType::kF32, {3, 5},
                                    std::numeric_limits<double>::quiet_NaN());
    ASSERT_OK(Gemm({}, {.a = a.view(), .b = b.view(), .c = c.view()}));
    EXPECT_TRUE(c.AllFinite());
  }
}

TEST(Gemm, PitchesSelectColumnsOfWiderMatrices) {
  // Column blocks [2, 5) of a, [1, 3) of c.
  TestTensor a = Integers(DType::kF64, {4, 6}, 1);
  TestTensor b = Integers(DType::kF64, {2, 3}, 2);
  TestTensor c = TestTensor::Full(DType::kF64, {4, 7}, 50);
  ASSERT_OK(
      Gemm({}, {.a = Tensor(a.view().data<double>() + 2, DType::kF64, {4, 3}),
                .b = b.view(),
                .c = Tensor(c.view().data<double>() + 1, DType::kF64, {4, 2}),
                .trans_b = true,
                .lda = 6,
                .ldc = 7}));
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      double expected = 50;
      if (j == 1 || j == 2) {
        expected = 0;
        for (int64_t l = 0; l < 3; ++l)
          expected += a.Get(i * 6 + 2 + l) * b.Get((j - 1) * 3 + l);
      }
      EXPECT_EQ(c.Get(i * 7 + j), expected) << i << ", " << j;
    }
  }
}

TEST(Gemm, ThreadsDoNotChangeTheResult) {
  TestTensor a = TestTensor::Random(DType::kF32, {513, 200}, 1);
  TestTensor b = TestTensor::Random(DType::kF32, {200, 130}, 2);
  TestTensor c = TestTensor::Zeros(DType::kF32, {513, 130});
  TestTensor d = TestTensor::Zeros(DType::kF32, {513, 130});
  ThreadPool pool(4);
  ASSERT_OK(Gemm({}, {.a = a.view(), .b = b.view(), .c = c.view()}));
  ASSERT_OK(
      Gemm({.pool = &pool}, {.a = a.view(), .b = b.view(), .c = d.view()}));
  for (int64_t i = 0; i < c.size(); ++i) ASSERT_EQ(c.Get(i), d.Get(i)) << i;
}

// Documents move in a batch, tokens among the rows of an expert.
TEST(Gemm, ARowDependsOnNothingBesideIt) {
  constexpr int64_t kDepth = 300, kColumns = 200;
  for (bool trans_b : {false, true}) {
    TestTensor a = TestTensor::Random(DType::kF32, {259, kDepth}, 1);
    TestTensor b =
        TestTensor::Random(DType::kF32,
                           trans_b ? std::vector<int64_t>{kColumns, kDepth}
                                   : std::vector<int64_t>{kDepth, kColumns},
                           2);
    TestTensor whole = TestTensor::Zeros(DType::kF32, {259, kColumns});
    ASSERT_OK(Gemm(
        {},
        {.a = a.view(), .b = b.view(), .c = whole.view(), .trans_b = trans_b}));
    for (int64_t first : {0, 1, 7, 95, 100, 258}) {
      for (int64_t rows : {1, 3, 11, 97}) {
        if (first + rows > 259) continue;
        TestTensor part = TestTensor::Zeros(DType::kF32, {rows, kColumns});
        ASSERT_OK(Gemm({}, {.a = a.view().Rows(first, first + rows),
                            .b = b.view(),
                            .c = part.view(),
                            .trans_b = trans_b}));
        for (int64_t i = 0; i < part.size(); ++i) {
          ASSERT_EQ(part.Get(i), whole.Get(first * kColumns + i)) << i;
        }
      }
    }
  }
}

TEST(Gemm, Float32IsRoundedOnce) {
  TestTensor a = TestTensor::Random(DType::kF32, {5, 700}, 1);
  TestTensor b = TestTensor::Random(DType::kF32, {700, 3}, 2);
  TestTensor c = TestTensor::Random(DType::kF32, {5, 3}, 3);
  const TestTensor before = c;
  ASSERT_OK(Gemm({}, {.a = a.view(),
                      .b = b.view(),
                      .c = c.view(),
                      .alpha = 0.3,
                      .beta = 0.7}));
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < 700; ++l) {
        sum += a.Get(i * 700 + l) * b.Get(l * 3 + j);
      }
      EXPECT_EQ(c.Get(i * 3 + j),
                static_cast<float>(0.3 * sum + 0.7 * before.Get(i * 3 + j)));
    }
  }
}

// So that results do not depend on the processor.
TEST(GemmTile, AllOfThisProcessorGiveTheSameBits) {
  constexpr int64_t kDepth = 77, kRows = 24;
  const TestTensor a = TestTensor::Random(DType::kF32, {kRows, kDepth}, 1);
  const TestTensor b = TestTensor::Random(DType::kF32, {kDepth, 16}, 2);
  std::vector<std::vector<double>> results;
  for (int t = 0; t < NumGemmTiles(); ++t) {
    const GemmTile& tile = GemmTileAt(t);
    ASSERT_LE(tile.rows, kMaxTileRows);
    ASSERT_EQ(kRows % tile.rows, 0);
    std::vector<double> right;
    for (int64_t i = 0; i < b.size(); ++i) right.push_back(b.Get(i));
    std::vector<double> sums(kRows * 16, 0.25);
    for (int64_t first = 0; first < kRows; first += tile.rows) {
      std::vector<double> left;
      for (int64_t p = 0; p < kDepth; ++p) {
        for (int64_t i = 0; i < tile.rows; ++i) {
          left.push_back(a.Get((first + i) * kDepth + p));
        }
      }
      tile.run(kDepth, left.data(), right.data(), sums.data() + first * 16, 16);
    }
    results.push_back(sums);
  }
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST(Gemm, RefusesShapesThatDoNotMatch) {
  TestTensor a = TestTensor::Zeros(DType::kF32, {3, 4});
  TestTensor b = TestTensor::Zeros(DType::kF32, {5, 6});
  TestTensor c = TestTensor::Zeros(DType::kF32, {3, 6});
  EXPECT_THAT(Gemm({}, {.a = a.view(), .b = b.view(), .c = c.view()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("b is f32[5,6], expected f32[4,*]")));
  EXPECT_THAT(
      Gemm({}, {.a = a.view(), .b = a.view(), .c = c.view(), .trans_b = true}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("expected f32[3,3]")));
  TestTensor d = TestTensor::Zeros(DType::kF32, {3, 3});
  EXPECT_THAT(Gemm({}, {.a = a.view(),
                        .b = a.view(),
                        .c = d.view(),
                        .trans_b = true,
                        .lda = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("shorter than its rows")));
}

TEST(Gemm, WithoutCudaLinkedAnswersUnimplemented) {
  TestTensor a = TestTensor::Zeros(DType::kF32, {2, 2});
  EXPECT_THAT(Gemm({.backend = Backend::kCuda},
                   {.a = a.view(), .b = a.view(), .c = a.view()}),
              StatusIs(absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace cadre
