#include "kernels/fp8_block/fp8_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;

TEST(Fp8BlockTest, EveryCodeHasItsValue) {
  EXPECT_EQ(DecodeE4m3(0x00), 0);
  EXPECT_TRUE(std::signbit(DecodeE4m3(0x80)));
  EXPECT_EQ(DecodeE4m3(0x01), std::pow(2.0f, -9));      // least subnormal
  EXPECT_EQ(DecodeE4m3(0x07), 7 * std::pow(2.0f, -9));  // largest subnormal
  EXPECT_EQ(DecodeE4m3(0x08), std::pow(2.0f, -6));      // least normal
  EXPECT_EQ(DecodeE4m3(0x38), 1);
  EXPECT_EQ(DecodeE4m3(0x39), 1.125);
  EXPECT_EQ(DecodeE4m3(0xC4), -3);
  EXPECT_EQ(DecodeE4m3(0x7E), 448);  // the largest
  EXPECT_EQ(DecodeE4m3(0xFE), -448);
  EXPECT_TRUE(std::isnan(DecodeE4m3(0x7F)));
  EXPECT_TRUE(std::isnan(DecodeE4m3(0xFF)));
  for (int code = 0; code < 0x7E; ++code)
    EXPECT_LT(DecodeE4m3(code), DecodeE4m3(code + 1)) << code;
}

TEST(Fp8BlockTest, EachBlockOf128HasItsScale) {
  constexpr int64_t kRows = 130, kColumns = 257;
  std::vector<unsigned char> weight(kRows * kColumns, 0x39);
  std::vector<float> scale = {1, 2, 3, 0.1f, 5, 6};
  std::vector<float> out(kRows * kColumns);
  ThreadPool pool(2);
  ASSERT_OK(Fp8BlockDecode(
      {.pool = &pool},
      {.weight = Tensor(weight.data(), DType::kF8E4M3, {kRows, kColumns}),
       .scale_inv = Tensor(scale.data(), DType::kF32, {2, 3}),
       .out = Tensor(out.data(), DType::kF32, {kRows, kColumns})}));
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      const float expected = 1.125f * scale[i / 128 * 3 + j / 128];
      ASSERT_EQ(out[i * kColumns + j], expected) << i << ", " << j;
    }
  }
}

TEST(Fp8BlockTest, AcceptsNoRowsAndRefusesAWrongScaleTable) {
  EXPECT_OK(
      Fp8BlockDecode({}, {.weight = Tensor(nullptr, DType::kU8, {0, 4}),
                          .scale_inv = Tensor(nullptr, DType::kF32, {0, 1}),
                          .out = Tensor(nullptr, DType::kF64, {0, 4})}));
  std::vector<unsigned char> weight(129);
  std::vector<float> scale(1), out(129);
  EXPECT_THAT(Fp8BlockDecode(
                  {}, {.weight = Tensor(weight.data(), DType::kU8, {1, 129}),
                       .scale_inv = Tensor(scale.data(), DType::kF32, {1, 1}),
                       .out = Tensor(out.data(), DType::kF32, {1, 129})}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
