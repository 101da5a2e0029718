#include "kernels/grouped_gemm/grouped_gemm.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/exec.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::HasSubstr;

constexpr DType kF64 = DType::kF64;

// Integer values: sums are exact.
TestTensor Integers(std::vector<int64_t> dims, int seed) {
  TestTensor out = TestTensor::Zeros(kF64, std::move(dims));
  for (int64_t i = 0; i < out.size(); ++i)
    out.Set(i, (i * 5 + seed * 3 + i * i % 7) % 7 - 3);
  return out;
}

struct Case {
  std::vector<int32_t> offsets;
  int64_t rows, n, k;
};

const Case kCases[] = {
    {{0, 3, 3, 4, 20}, 20, 5, 7},  // an empty group, a group of one
    {{0, 0, 17, 17}, 17, 4, 3},    // one group takes all
    {{0, 2, 5}, 9, 6, 1},          // rows behind the last group
    {{0, 0, 0}, 4, 3, 2},          // no row in any group
    {{0}, 3, 3, 2},                // no group
    {{0, 64, 127, 129}, 129, 1, 65},
    {{0, 0}, 0, 4, 4},
};

TEST(GroupedGemm, EveryModeEqualsItsDefinition) {
  for (const Case& c : kCases) {
    for (bool accumulate : {false, true}) {
      const int64_t groups = static_cast<int64_t>(c.offsets.size()) - 1;
      SCOPED_TRACE(::testing::Message() << groups << " groups of " << c.rows);
      TestTensor offsets = TestTensor::Table(c.offsets);
      TestTensor x = Integers({c.rows, c.k}, 1);
      TestTensor w = Integers({groups, c.n, c.k}, 2);
      TestTensor y = Integers({c.rows, c.n}, 3);
      for (auto mode :
           {GroupedGemmMode::kNT, GroupedGemmMode::kNN, GroupedGemmMode::kTN}) {
        TestTensor rx = x, rw = w, ry = y;
        TestTensor ex = x, ew = w, ey = y;
        TestTensor& expected = mode == GroupedGemmMode::kNT   ? ey
                               : mode == GroupedGemmMode::kNN ? ex
                                                              : ew;
        ASSERT_OK(GroupedGemm({}, {.mode = mode,
                                   .x = rx.view(),
                                   .w = rw.view(),
                                   .y = ry.view(),
                                   .offsets = offsets.view(),
                                   .alpha = 2,
                                   .accumulate = accumulate}));
        if (!accumulate) {
          const int64_t cols = mode == GroupedGemmMode::kNT   ? c.n
                               : mode == GroupedGemmMode::kNN ? c.k
                                                              : 0;
          const int64_t owned = mode == GroupedGemmMode::kTN
                                    ? expected.size()
                                    : c.offsets.back() * cols;
          for (int64_t i = 0; i < owned; ++i) expected.Set(i, 0);
        }
        for (int64_t g = 0; g < groups; ++g) {
          for (int64_t r = c.offsets[g]; r < c.offsets[g + 1]; ++r) {
            for (int64_t i = 0; i < c.n; ++i) {
              for (int64_t j = 0; j < c.k; ++j) {
                const int64_t xi = r * c.k + j, yi = r * c.n + i;
                const int64_t wi = (g * c.n + i) * c.k + j;
                if (mode == GroupedGemmMode::kNT)
                  ey.Set(yi, ey.Get(yi) + 2 * x.Get(xi) * w.Get(wi));
                if (mode == GroupedGemmMode::kNN)
                  ex.Set(xi, ex.Get(xi) + 2 * y.Get(yi) * w.Get(wi));
                if (mode == GroupedGemmMode::kTN)
                  ew.Set(wi, ew.Get(wi) + 2 * y.Get(yi) * x.Get(xi));
              }
            }
          }
        }
        for (int64_t i = 0; i < x.size(); ++i)
          ASSERT_EQ(rx.Get(i), ex.Get(i)) << "x " << i;
        for (int64_t i = 0; i < w.size(); ++i)
          ASSERT_EQ(rw.Get(i), ew.Get(i)) << "w " << i;
        for (int64_t i = 0; i < y.size(); ++i)
          ASSERT_EQ(ry.Get(i), ey.Get(i)) << "y " << i;
      }
    }
  }
}

TEST(GroupedGemm, BackwardModesAreTheGradientsOfTheForward) {
  TestTensor offsets = TestTensor::Table({0, 4, 4, 9});
  TestTensor x = TestTensor::Random(kF64, {9, 6}, 1);
  TestTensor w = TestTensor::Random(kF64, {3, 5, 6}, 2);
  TestTensor y = TestTensor::Zeros(kF64, {9, 5});
  TestTensor dy = TestTensor::Random(kF64, {9, 5}, 3);
  TestTensor dx = TestTensor::Zeros(kF64, {9, 6});
  TestTensor dw = TestTensor::Zeros(kF64, {3, 5, 6});
  auto loss = [&] {
    EXPECT_OK(GroupedGemm({}, {.x = x.view(),
                               .w = w.view(),
                               .y = y.view(),
                               .offsets = offsets.view()}));
    return Dot(y, dy);
  };
  ASSERT_OK(GroupedGemm({}, {.mode = GroupedGemmMode::kNN,
                             .x = dx.view(),
                             .w = w.view(),
                             .y = dy.view(),
                             .offsets = offsets.view()}));
  ASSERT_OK(GroupedGemm({}, {.mode = GroupedGemmMode::kTN,
                             .x = x.view(),
                             .w = dw.view(),
                             .y = dy.view(),
                             .offsets = offsets.view(),
                             .accumulate = true}));
  ExpectGradients(loss,
                  {{"x", x.view(), dx.view()}, {"w", w.view(), dw.view()}});
}

TEST(GroupedGemm, RefusesBadOffsets) {
  TestTensor x = TestTensor::Zeros(kF64, {4, 2});
  TestTensor w = TestTensor::Zeros(kF64, {2, 3, 2});
  TestTensor y = TestTensor::Zeros(kF64, {4, 3});
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{1, 2, 4}, {0, 3, 2}, {0, 2, 5}, {0, 4}}) {
    TestTensor offsets = TestTensor::Table(bad);
    EXPECT_THAT(
        GroupedGemm({}, {.x = x.view(),
                         .w = w.view(),
                         .y = y.view(),
                         .offsets = offsets.view()}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("offsets")));
  }
}

}  // namespace
}  // namespace cadre
