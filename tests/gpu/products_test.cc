// Gemm and GroupedGemm on a GPU against sums in float64.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "kernels/cast/cast.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/random_fill/random_fill.h"
#include "tests/gpu/device_tensor.h"
#include "worker/device/arena.h"
#include "worker/device/device.h"

namespace cadre {
namespace {

using testing::DeviceTensor;
using testing::Must;
using testing::Random;
using testing::Relative;
using testing::Table;
using Mode = GroupedGemmMode;

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(0);
    if (!device.ok()) {
      GTEST_SKIP() << "no GPU: " << std::string(device.status().message());
    }
    device_ = *std::move(device);
    exec_ = device_->exec();
  }
  // bf16 operands are exact in both sums; f32 results round once, bf16 ones to
  // 2^-9 of each element.
  static double Bound(DType out) { return out == DType::kBF16 ? 4e-3 : 2e-6; }

  std::unique_ptr<Device> device_;
  Exec exec_;
};

struct GemmCase {
  int64_t m, n, k;
  bool trans_a, trans_b;
  double alpha, beta;
};

TEST_F(GpuTest, GemmAgreesWithFloat64) {
  const GemmCase cases[] = {
      {1, 1, 1, false, true, 1, 0},      {7, 5, 3, false, false, 1, 0},
      {64, 48, 32, false, true, 1, 0},   {300, 16, 48, false, true, 2, 1},
      {129, 200, 77, true, false, 1, 1}, {48, 300, 8, true, true, -1, 0.5},
      {5, 9, 0, false, true, 1, 0.5},    {257, 1, 64, false, true, 1, 0}};
  const std::pair<DType, DType> types[] = {{DType::kF32, DType::kF32},
                                           {DType::kBF16, DType::kBF16},
                                           {DType::kBF16, DType::kF32}};
  for (const GemmCase& c : cases) {
    for (const auto& [in, out] : types) {
      SCOPED_TRACE(absl::StrCat(c.m, "x", c.n, "x", c.k, " ", DTypeName(in),
                                " to ", DTypeName(out)));
      const DeviceTensor a = Random(exec_, in,
                                    c.trans_a ? std::vector<int64_t>{c.k, c.m}
                                              : std::vector<int64_t>{c.m, c.k},
                                    1);
      const DeviceTensor b = Random(exec_, in,
                                    c.trans_b ? std::vector<int64_t>{c.n, c.k}
                                              : std::vector<int64_t>{c.k, c.n},
                                    2);
      const DeviceTensor y = Random(exec_, out, {c.m, c.n}, 3);
      ASSERT_OK(Gemm(exec_, {.a = a.view,
                             .b = b.view,
                             .c = y.view,
                             .trans_a = c.trans_a,
                             .trans_b = c.trans_b,
                             .alpha = c.alpha,
                             .beta = c.beta}));
      std::vector<double> want;
      for (int64_t i = 0; i < c.m; ++i) {
        for (int64_t j = 0; j < c.n; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < c.k; ++k) {
            sum += double{a.host[c.trans_a ? k * c.m + i : i * c.k + k]} *
                   b.host[c.trans_b ? j * c.k + k : k * c.n + j];
          }
          want.push_back(c.alpha * sum + c.beta * y.host[i * c.n + j]);
        }
      }
      EXPECT_LE(Relative(Must(ReadFloats(exec_, y.view)), want), Bound(out));
    }
  }
}

struct GroupedCase {
  std::vector<int32_t> rows;  // of each group
  int64_t left_over, n, k;
};

// The three modes, with and without accumulation; what belongs to no group is
// NaN and must neither be read nor written.
void CheckGrouped(const Exec& exec, const GroupedCase& c, DType in, Mode mode,
                  DType out, bool accumulate, double bound) {
  SCOPED_TRACE(absl::StrCat("groups ", c.rows.size(), " N ", c.n, " K ", c.k,
                            " mode ", static_cast<int>(mode), " ",
                            DTypeName(in), " to ", DTypeName(out),
                            accumulate ? " accumulating" : ""));
  std::vector<int32_t> offsets = {0};
  for (int32_t r : c.rows) offsets.push_back(offsets.back() + r);
  const int64_t G = std::ssize(c.rows), used = offsets.back();
  const int64_t R = used + c.left_over;
  const auto poison = [&](DeviceTensor t, int64_t width) {
    for (int64_t i = used * width; i < R * width; ++i) t.host[i] = NAN;
    Must(WriteFloats(exec, t.host, t.view));
    return t;
  };
  const DeviceTensor x =
      poison(Random(exec, mode == Mode::kNN ? out : in, {R, c.k}, 1), c.k);
  const DeviceTensor y =
      poison(Random(exec, mode == Mode::kNT ? out : in, {R, c.n}, 2), c.n);
  const DeviceTensor w =
      Random(exec, mode == Mode::kTN ? out : in, {G, c.n, c.k}, 3);
  const DeviceTensor table = Table(exec, offsets);
  const double alpha = 0.5;
  ASSERT_OK(GroupedGemm(exec, {.mode = mode,
                               .x = x.view,
                               .w = w.view,
                               .y = y.view,
                               .offsets = table.view,
                               .alpha = alpha,
                               .accumulate = accumulate}));
  const DeviceTensor& result = mode == Mode::kNT   ? y
                               : mode == Mode::kNN ? x
                                                   : w;
  std::vector<double> want(result.host.size(), 0.0);
  if (accumulate) want.assign(result.host.begin(), result.host.end());
  for (int64_t g = 0; g < G; ++g) {
    for (int64_t r = offsets[g]; r < offsets[g + 1]; ++r) {
      for (int64_t n = 0; n < c.n; ++n) {
        for (int64_t k = 0; k < c.k; ++k) {
          const int64_t at[3] = {r * c.n + n, r * c.k + k,
                                 (g * c.n + n) * c.k + k};
          if (mode == Mode::kNT)
            want[at[0]] += alpha * x.host[at[1]] * w.host[at[2]];
          if (mode == Mode::kNN)
            want[at[1]] += alpha * y.host[at[0]] * w.host[at[2]];
          if (mode == Mode::kTN)
            want[at[2]] += alpha * x.host[at[1]] * y.host[at[0]];
        }
      }
    }
  }
  std::vector<float> got = Must(ReadFloats(exec, result.view));
  if (mode != Mode::kTN) {
    const int64_t width = mode == Mode::kNT ? c.n : c.k;
    for (int64_t i = used * width; i < R * width; ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << "row " << i / width << " was written";
    }
    got.resize(used * width);
    want.resize(used * width);
  }
  EXPECT_LE(Relative(got, want), bound);
}

TEST_F(GpuTest, GroupedGemmAgreesWithFloat64) {
  const GroupedCase cases[] = {
      {{3, 0, 5, 1}, 2, 24, 16},
      {{64, 128, 0, 65, 63, 129}, 3, 48, 40},
      {{0, 0, 300}, 0, 264, 136},
      {{1, 127, 7}, 100, 328, 64},
      {{0, 0}, 5, 16, 16},
      {{40, 9}, 0, 7, 5}};  // no tensor-core kernel takes this
  for (const GroupedCase& c : cases) {
    for (const Mode mode : {Mode::kNT, Mode::kNN, Mode::kTN}) {
      for (const bool accumulate : {false, true}) {
        CheckGrouped(exec_, c, DType::kF32, mode, DType::kF32, accumulate,
                     2e-6);
        CheckGrouped(exec_, c, DType::kBF16, mode, DType::kBF16, accumulate,
                     Bound(DType::kBF16));
        if (mode == Mode::kTN) {
          CheckGrouped(exec_, c, DType::kBF16, mode, DType::kF32, accumulate,
                       2e-6);
        }
      }
    }
  }
}

TEST_F(GpuTest, ProductsRepeatBitForBit) {
  const DeviceTensor x = Random(exec_, DType::kBF16, {700, 256}, 1);
  const DeviceTensor w = Random(exec_, DType::kBF16, {3, 512, 256}, 2);
  const DeviceTensor y = Random(exec_, DType::kBF16, {700, 512}, 3);
  const DeviceTensor table = Table(exec_, {0, 300, 301, 690});
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(GroupedGemm(exec_, {.mode = Mode::kNT,
                                  .x = x.view,
                                  .w = w.view,
                                  .y = y.view,
                                  .offsets = table.view}));
    std::vector<float> got = Must(ReadFloats(exec_, y.view));
    if (i == 0) first = got;
    EXPECT_EQ(got, first);
  }
}

TEST_F(GpuTest, RandomFillIsTheHostsButForRounding) {
  std::vector<float> host(1001);
  const RandomFillArgs args{.deviation = 0.02, .seed = 9};
  RandomFillArgs on_host = args, on_device = args;
  on_host.x = Tensor(host.data(), DType::kF32, {1001});
  ASSERT_OK(RandomFill({}, on_host));
  const DeviceTensor t = Random(exec_, DType::kF32, {1001}, 1);
  on_device.x = t.view;
  ASSERT_OK(RandomFill(exec_, on_device));
  const std::vector<double> want(host.begin(), host.end());
  EXPECT_LE(Relative(Must(ReadFloats(exec_, t.view)), want), 1e-5);
}

TEST_F(GpuTest, CastRoundsToNearestEven) {
  const DeviceTensor wide = Random(exec_, DType::kF32, {1003}, 1);
  const DeviceTensor narrow = Random(exec_, DType::kBF16, {1003}, 2);
  ASSERT_OK(Cast(exec_, wide.view, narrow.view));
  const DeviceTensor want =
      testing::Upload(exec_, DType::kBF16, {1003}, wide.host);
  EXPECT_EQ(Must(ReadFloats(exec_, narrow.view)), want.host);
}

TEST_F(GpuTest, ArenaGrowsInPlaceAndThenAllocatesNothing) {
  Arena arena(exec_, "test");
  const Tensor first = arena.Allocate(DType::kF32, {1000});
  ASSERT_OK(WriteFloats(exec_, std::vector<float>(1000, 3), first));
  arena.Allocate(DType::kF32, {int64_t{100} << 20});  // 400 MiB
  EXPECT_EQ(Must(ReadFloats(exec_, first))[999], 3);
  const int64_t allocations = arena.num_allocations();
  arena.Reset();
  arena.Allocate(DType::kF32, {int64_t{90} << 20});
  EXPECT_EQ(arena.num_allocations(), allocations);
}

TEST_F(GpuTest, ArenaSaysWhatDidNotFit) {
  Arena arena(exec_, "activations");
  const Tensor t = arena.Allocate(DType::kF32, {int64_t{1} << 45});
  EXPECT_EQ(t.raw(), nullptr);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()),
              ::testing::HasSubstr("activations"));
  EXPECT_EQ(Cast(exec_, t, t).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cadre
