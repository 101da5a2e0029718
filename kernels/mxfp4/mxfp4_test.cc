#include "kernels/mxfp4/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/common/thread_pool.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

std::vector<float> Decode(std::vector<unsigned char> packed,
                          std::vector<unsigned char> scale, int64_t rows) {
  std::vector<float> out(packed.size() * 2, 99);
  const int64_t columns = static_cast<int64_t>(out.size()) / rows;
  ThreadPool pool(2);
  EXPECT_OK(Mxfp4Decode(
      {.pool = &pool},
      {.packed = Tensor(packed.data(), DType::kU8, {rows, columns / 2}),
       .scale = Tensor(scale.data(), DType::kU8, {rows, columns / 32}),
       .out = Tensor(out.data(), DType::kF32, {rows, columns})}));
  return out;
}

TEST(Mxfp4Test, HasTheHandValueWithTheLowNibbleFirst) {
  const std::vector<float> out =
      Decode(std::vector<unsigned char>(16, 0x2F), {128}, 1);
  EXPECT_EQ(out[0], -12);
  EXPECT_EQ(out[1], 2);
}

TEST(Mxfp4Test, EveryCodeAndScaleIsBitExact) {
  const double magnitudes[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  std::vector<unsigned char> packed;
  for (int i = 0; i < 8; ++i) packed.push_back(2 * i | (2 * i + 1) << 4);
  packed.resize(16, 0);
  for (int scale = 0; scale < 255; ++scale) {
    const std::vector<float> out =
        Decode(packed, {static_cast<unsigned char>(scale)}, 1);
    for (int code = 0; code < 16; ++code) {
      const double exact = magnitudes[code & 7] * std::pow(2.0, scale - 127) *
                           (code & 8 ? -1 : 1);
      EXPECT_EQ(Bits(out[code]), Bits(static_cast<float>(exact)))
          << "code " << code << ", scale " << scale;
    }
  }
  EXPECT_EQ(Bits(Decode(packed, {127}, 1)[8]), 0x80000000u);  // -0
  EXPECT_TRUE(std::isnan(Decode(packed, {255}, 1)[3]));
}

TEST(Mxfp4Test, ScalesBelongToRunsOf32ColumnsOfARow) {
  std::vector<unsigned char> packed(3 * 32, 0x22);
  const std::vector<float> out =
      Decode(packed, {127, 128, 129, 130, 126, 125}, 3);
  const float expected[6] = {1, 2, 4, 8, .5f, .25f};
  for (int i = 0; i < 192; ++i) EXPECT_EQ(out[i], expected[i / 32]) << i;
}

TEST(Mxfp4Test, AcceptsExpertsAndNoRowsAndRefusesOddWidths) {
  std::vector<unsigned char> packed(64, 0x22), scale(4, 127);
  std::vector<double> out(128);
  EXPECT_OK(
      Mxfp4Decode({}, {.packed = Tensor(packed.data(), DType::kU8, {2, 2, 16}),
                       .scale = Tensor(scale.data(), DType::kU8, {2, 2, 1}),
                       .out = Tensor(out.data(), DType::kF64, {2, 2, 32})}));
  EXPECT_EQ(out[127], 1);
  EXPECT_OK(Mxfp4Decode({}, {.packed = Tensor(nullptr, DType::kU8, {0, 16}),
                             .scale = Tensor(nullptr, DType::kU8, {0, 1}),
                             .out = Tensor(nullptr, DType::kF32, {0, 32})}));
  EXPECT_THAT(
      Mxfp4Decode({}, {.packed = Tensor(packed.data(), DType::kU8, {1, 8}),
                       .scale = Tensor(scale.data(), DType::kU8, {1, 1}),
                       .out = Tensor(out.data(), DType::kF64, {1, 16})}),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
