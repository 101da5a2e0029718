#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;

Tensor View(std::vector<double>& x, std::initializer_list<int64_t> dims) {
  return Tensor(x.data(), DType::kF64, dims);
}

TEST(Elementwise, CopiesAndAccumulatesColumns) {
  std::vector<double> src{1, 2, 3, 4, 5, 6}, dst(8, 10);
  // Row 0: 1 2 3, row 1: 4 5 6; columns 1..2 go to columns 2..3.
  CopyColumnsArgs args{.src = View(src, {2, 3}),
                       .dst = View(dst, {2, 4}),
                       .rows = 2,
                       .src_column = 1,
                       .dst_column = 2,
                       .width = 2};
  ASSERT_OK(CopyColumns({}, args));
  EXPECT_EQ(dst, (std::vector<double>{10, 10, 2, 3, 10, 10, 5, 6}));
  args.accumulate = true;
  ASSERT_OK(CopyColumns({}, args));
  EXPECT_EQ(dst[7], 12);
  args.width = 3;
  EXPECT_THAT(CopyColumns({}, args),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Elementwise, SigmoidGateMatchesFiniteDifferences) {
  for (const bool per_row : {false, true}) {
    std::vector<double> x{0.5, -1, 2, 3, 0.1, -0.7};
    std::vector<double> gate = per_row
                                   ? std::vector<double>{0.3, -2}
                                   : std::vector<double>{1, 0, -1, 2, -2, 9};
    const int64_t gates = static_cast<int64_t>(gate.size());
    std::vector<double> dy{1, 2, -1, 0.5, 3, -2}, y(6), dx(6),
        dgate(gate.size());
    auto loss = [&] {
      EXPECT_OK(SigmoidGateForward({}, View(x, {2, 3}), View(gate, {gates}),
                                   View(y, {2, 3})));
      double sum = 0;
      for (int i = 0; i < 6; ++i) sum += y[i] * dy[i];
      return sum;
    };
    ASSERT_OK(SigmoidGateBackward({}, {.x = View(x, {2, 3}),
                                       .gate = View(gate, {gates}),
                                       .dy = View(dy, {2, 3}),
                                       .dx = View(dx, {2, 3}),
                                       .dgate = View(dgate, {gates})}));
    const double h = 1e-6;
    auto check = [&](std::vector<double>& value,
                     std::vector<double>& gradient) {
      for (size_t i = 0; i < value.size(); ++i) {
        value[i] += h;
        const double up = loss();
        value[i] -= 2 * h;
        const double down = loss();
        value[i] += h;
        EXPECT_NEAR((up - down) / (2 * h), gradient[i], 1e-7);
      }
    };
    check(x, dx);
    check(gate, dgate);
  }
}

TEST(Elementwise, DropoutRepeatsItsMaskAndKeepsTheMean) {
  std::vector<double> x(20000, 1), a(x.size()), b(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  DropoutArgs args{
      .x = View(x, {n}), .y = View(a, {n}), .probability = 0.25, .seed = 7};
  ASSERT_OK(Dropout({}, args));
  args.y = View(b, {n});
  ASSERT_OK(Dropout({}, args));
  EXPECT_EQ(a, b);
  double sum = 0;
  for (double v : a) {
    EXPECT_TRUE(v == 0 || std::abs(v - 4.0 / 3) < 1e-12);
    sum += v;
  }
  EXPECT_NEAR(sum / static_cast<double>(n), 1, 0.02);
  args.seed = 8;
  ASSERT_OK(Dropout({}, args));
  EXPECT_NE(a, b);
  args.probability = 1;
  EXPECT_THAT(Dropout({}, args), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Elementwise, AddsInPlaceAndTakesEmptyTensors) {
  std::vector<double> x{1, 2}, y{3, 4}, none;
  ASSERT_OK(AddInPlace({}, View(x, {2}), View(y, {2})));
  EXPECT_EQ(y, (std::vector<double>{4, 6}));
  EXPECT_OK(AddInPlace({}, View(none, {0}), View(none, {0})));
  EXPECT_THAT(AddInPlace({}, View(x, {2}), View(none, {0})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
