#include "kernels/embedding/embedding.h"

#include <gtest/gtest.h>

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
using ::testing::HasSubstr;

TEST(EmbeddingTest, BackwardMatchesFiniteDifferences) {
  TestTensor ids = TestTensor::Table({3, 0, 3, 6, 3});
  TestTensor table = TestTensor::Random(DType::kF64, {7, 5}, 1);
  TestTensor y = TestTensor::Zeros(DType::kF64, {5, 5});
  TestTensor dy = TestTensor::Random(DType::kF64, {5, 5}, 2);
  TestTensor dtable = TestTensor::Zeros(DType::kF64, {7, 5});
  auto loss = [&] {
    EXPECT_OK(EmbeddingForward(
        {}, {.ids = ids.view(), .table = table.view(), .y = y.view()}));
    return Dot(y, dy);
  };
  ASSERT_OK(EmbeddingBackward(
      {}, {.ids = ids.view(), .dy = dy.view(), .dtable = dtable.view()}));
  ExpectGradients(loss, {{"table", table.view(), dtable.view()}});
}

TEST(EmbeddingTest, PadRowNeverGetsAGradientAndOthersAccumulate) {
  ThreadPool pool(2);
  TestTensor ids = TestTensor::Table({1, 2, 1, 2});
  TestTensor dy = TestTensor::Full(DType::kF32, {4, 130}, 1);
  TestTensor dtable = TestTensor::Full(DType::kF32, {3, 130}, 10);
  ASSERT_OK(EmbeddingBackward({.pool = &pool}, {.ids = ids.view(),
                                                .dy = dy.view(),
                                                .dtable = dtable.view(),
                                                .pad_id = 2}));
  for (int64_t d = 0; d < 130; ++d) {
    EXPECT_EQ(dtable.Get(d), 10);
    EXPECT_EQ(dtable.Get(130 + d), 12);
    EXPECT_EQ(dtable.Get(260 + d), 10);
  }
}

TEST(EmbeddingTest, AcceptsNoTokensAndNamesABadId) {
  TestTensor none = TestTensor::Table({});
  TestTensor table = TestTensor::Zeros(DType::kF32, {3, 2});
  TestTensor empty = TestTensor::Zeros(DType::kF32, {0, 2});
  EXPECT_OK(EmbeddingForward(
      {}, {.ids = none.view(), .table = table.view(), .y = empty.view()}));
  TestTensor bad = TestTensor::Table({2, 3});
  TestTensor y = TestTensor::Zeros(DType::kF32, {2, 2});
  EXPECT_THAT(
      EmbeddingForward(
          {}, {.ids = bad.view(), .table = table.view(), .y = y.view()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("token 1 has id 3")));
}

}  // namespace
}  // namespace cadre
