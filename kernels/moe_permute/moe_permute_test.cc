#include "kernels/moe_permute/moe_permute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/finite_difference.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::Dot;
using ::cadre::testing::ExpectGradients;
using ::cadre::testing::StatusIs;
using ::cadre::testing::TestTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> Ints(const TestTensor& table) {
  std::vector<int> out;
  for (int64_t i = 0; i < table.size(); ++i) out.push_back(table.Get(i));
  return out;
}

struct Tables {
  Tables(int64_t tokens, int64_t top_k, int64_t experts,
         const std::vector<double>& values)
      : top_k(top_k),
        ids(TestTensor::Of(DType::kI32, {tokens, top_k}, values)),
        offsets(TestTensor::Zeros(DType::kI32, {experts + 1})),
        row_source(TestTensor::Zeros(DType::kI32, {tokens * top_k})),
        row_of(TestTensor::Zeros(DType::kI32, {tokens, top_k})) {}
  absl::Status Permute() {
    return MoePermute({}, {.ids = ids.view(),
                           .offsets = offsets.view(),
                           .row_source = row_source.view(),
                           .row_of = row_of.view()});
  }
  int64_t num_rows() const { return offsets.Get(offsets.size() - 1); }

  int64_t top_k;
  TestTensor ids, offsets, row_source, row_of;
};

TEST(MoePermuteTest, OrdersByExpertThenToken) {
  Tables t(4, 2, 3, {2, 0, -1, -1, 0, 2, 2, 1});
  ASSERT_OK(t.Permute());
  EXPECT_THAT(Ints(t.offsets), ElementsAre(0, 2, 3, 6));
  EXPECT_THAT(Ints(t.row_source), ElementsAre(1, 4, 7, 0, 5, 6, -1, -1));
  EXPECT_THAT(Ints(t.row_of), ElementsAre(3, 0, -1, -1, 1, 4, 5, 2));
}

TEST(MoePermuteTest, HandlesOneExpertWithAllAndNoTokens) {
  Tables all(3, 1, 4, {2, 2, 2});
  ASSERT_OK(all.Permute());
  EXPECT_THAT(Ints(all.offsets), ElementsAre(0, 0, 0, 3, 3));
  EXPECT_THAT(Ints(all.row_source), ElementsAre(0, 1, 2));
  Tables none(0, 2, 3, {});
  ASSERT_OK(none.Permute());
  EXPECT_THAT(Ints(none.offsets), ElementsAre(0, 0, 0, 0));
  Tables padding(2, 1, 2, {-1, -1});
  ASSERT_OK(padding.Permute());
  EXPECT_EQ(padding.num_rows(), 0);
}

TEST(MoePermuteTest, EveryExpertOfEveryToken) {
  Tables t(2, 3, 3, {2, 1, 0, 0, 2, 1});
  ASSERT_OK(t.Permute());
  EXPECT_THAT(Ints(t.offsets), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(Ints(t.row_source), ElementsAre(2, 3, 1, 5, 0, 4));
}

TEST(MoePermuteTest, NamesABadExpert) {
  Tables t(1, 2, 3, {0, 3});
  EXPECT_THAT(t.Permute(), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("ids[1] is 3")));
}

TEST(MoePermuteTest, GatherAndCombineBackwardMatchFiniteDifferences) {
  ThreadPool pool(2);
  const Exec exec = {.pool = &pool};
  Tables t(5, 2, 3, {2, 0, -1, -1, 0, 2, 2, 1, 0, 1});
  ASSERT_OK(t.Permute());
  const int64_t rows = t.num_rows();
  TestTensor x = TestTensor::Random(DType::kF64, {5, 7}, 1);
  TestTensor weights = TestTensor::Random(DType::kF64, {5, 2}, 2);
  TestTensor gathered = TestTensor::Zeros(DType::kF64, {rows, 7});
  TestTensor expert = TestTensor::Random(DType::kF64, {rows, 7}, 3);
  TestTensor out = TestTensor::Zeros(DType::kF64, {rows, 7});
  TestTensor y = TestTensor::Zeros(DType::kF64, {5, 7});
  TestTensor dy = TestTensor::Random(DType::kF64, {5, 7}, 4);
  // y = combine(gather(x) * expert), expert elementwise.
  auto loss = [&] {
    EXPECT_OK(MoeGather(exec, {.x = x.view(),
                               .row_source = t.row_source.view(),
                               .top_k = 2,
                               .rows = gathered.view()}));
    for (int64_t i = 0; i < out.size(); ++i)
      out.Set(i, gathered.Get(i) * expert.Get(i));
    EXPECT_OK(MoeCombine(exec, {.rows = out.view(),
                                .row_of = t.row_of.view(),
                                .weights = weights.view(),
                                .y = y.view()}));
    return Dot(y, dy);
  };
  loss();
  TestTensor dout = out;  // in place of the rows
  TestTensor dweights = TestTensor::Full(DType::kF64, {5, 2}, 9);
  ASSERT_OK(MoeCombineBackward(exec, {.dy = dy.view(),
                                      .row_source = t.row_source.view(),
                                      .row_of = t.row_of.view(),
                                      .weights = weights.view(),
                                      .rows = dout.view(),
                                      .drows = dout.view(),
                                      .dweights = dweights.view()}));
  TestTensor dgathered = dout, dexpert = dout;
  for (int64_t i = 0; i < out.size(); ++i) {
    dexpert.Set(i, dout.Get(i) * gathered.Get(i));
    dgathered.Set(i, dout.Get(i) * expert.Get(i));
  }
  TestTensor dx = TestTensor::Zeros(DType::kF64, {5, 7});
  ASSERT_OK(MoeCombine(
      exec,
      {.rows = dgathered.view(), .row_of = t.row_of.view(), .y = dx.view()}));
  EXPECT_EQ(dweights.Get(2), 0);
  EXPECT_EQ(dweights.Get(3), 0);
  ExpectGradients(loss, {{"x", x.view(), dx.view()},
                         {"weights", weights.view(), dweights.view()},
                         {"expert", expert.view(), dexpert.view()}});
  TestTensor twice = dx;
  ASSERT_OK(MoeCombine(exec, {.rows = dgathered.view(),
                              .row_of = t.row_of.view(),
                              .y = twice.view(),
                              .accumulate = true}));
  for (int64_t i = 0; i < dx.size(); ++i)
    EXPECT_NEAR(twice.Get(i), 2 * dx.Get(i), 1e-14);
}

TEST(MoePermuteTest, RowsBehindTheLastGroupAreZeroed) {
  Tables t(2, 1, 2, {1, -1});
  ASSERT_OK(t.Permute());
  TestTensor x = TestTensor::Full(DType::kF32, {2, 3}, 5);
  TestTensor rows = TestTensor::Full(DType::kF32, {2, 3}, 9);
  ASSERT_OK(MoeGather(
      {},
      {.x = x.view(), .row_source = t.row_source.view(), .rows = rows.view()}));
  EXPECT_EQ(rows.Get(0), 5);
  for (int64_t i = 3; i < 6; ++i) EXPECT_EQ(rows.Get(i), 0);
}

}  // namespace
}  // namespace cadre
