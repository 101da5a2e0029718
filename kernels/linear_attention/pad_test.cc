#include "kernels/linear_attention/pad.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/linear_attention/generic.h"
#include "kernels/linear_attention/pad_plan.h"

namespace cadre::linear_attention {
namespace {

Tensor Heads(DType dtype, int64_t dim) {
  return Tensor(nullptr, dtype, {10, 2, dim});
}

TEST(KernelsFor, WidthsOf64And128InBf16AreChunked) {
  const auto choose = [](DType dtype, int64_t keys, int64_t values) {
    return KernelsFor(Heads(dtype, keys), Heads(dtype, values));
  };
  EXPECT_EQ(choose(DType::kBF16, 128, 128), DeltaKernels::kChunked);
  EXPECT_EQ(choose(DType::kBF16, 64, 64), DeltaKernels::kPadded);
  EXPECT_EQ(choose(DType::kBF16, 64, 128), DeltaKernels::kPadded);
  EXPECT_EQ(choose(DType::kBF16, 128, 64), DeltaKernels::kPadded);
  EXPECT_EQ(choose(DType::kF32, 128, 128), DeltaKernels::kGeneric);
  EXPECT_EQ(choose(DType::kF32, 64, 64), DeltaKernels::kGeneric);
  EXPECT_EQ(choose(DType::kBF16, 32, 64), DeltaKernels::kGeneric);
  EXPECT_EQ(choose(DType::kBF16, 64, 96), DeltaKernels::kGeneric);
  EXPECT_EQ(choose(DType::kBF16, 256, 128), DeltaKernels::kGeneric);
}

std::vector<PadShape> Shapes(const WorkShape& base) {
  std::vector<PadShape> shapes;
  for (const auto& [keys, values] :
       {std::pair{64, 64}, std::pair{64, 128}, std::pair{128, 64}}) {
    for (const bool backward : {false, true}) {
      for (const bool head_gate : {false, true}) {
        for (const bool initial : {false, true}) {
          PadShape shape{base, keys, values, head_gate, initial};
          shape.work.backward = backward;
          shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

TEST(LayOutPad, RegionsAreAlignedAndApart) {
  for (const PadShape& shape : Shapes({1000, 6, 3, 5, false})) {
    const PadLayout at = LayOutPad(shape);
    const int64_t keys = 1000 * 3 * 128 * 2, rows = 1000 * 6 * 128 * 2;
    const int64_t bias = 6 * 128 * 4, state = int64_t{5} * 6 * 128 * 128 * 4;
    std::vector<std::pair<int64_t, int64_t>> regions;
    const auto add = [&](int64_t offset, int64_t bytes) {
      if (offset >= 0) regions.emplace_back(offset, bytes);
    };
    for (const int64_t x : {at.q, at.k, at.dq, at.dk}) add(x, keys);
    for (const int64_t x : {at.v, at.z, at.o, at.d_o, at.dv, at.dz})
      add(x, rows);
    for (const int64_t x : {at.dt_bias, at.ddt_bias}) add(x, bias);
    for (const int64_t x : {at.initial_state, at.final_state, at.d_final_state,
                            at.d_initial_state})
      add(x, state);
    add(at.work, LayOutWork(shape.work).bytes);
    std::sort(regions.begin(), regions.end());
    int64_t end = 0;
    for (const auto& [offset, bytes] : regions) {
      EXPECT_EQ(offset % 256, 0);
      EXPECT_GE(offset, end);
      end = offset + bytes;
    }
    EXPECT_LE(end, at.bytes);
    EXPECT_EQ(at.z >= 0, shape.key_dim == 64 && !shape.head_gate);
    EXPECT_EQ(at.initial_state >= 0, shape.initial_state);
  }
}

TEST(LayOutPad, GrowsWithEverySize) {
  const WorkShape base{500, 4, 4, 3, false};
  for (const WorkShape& more :
       {WorkShape{501, 4, 4, 3, false}, WorkShape{500, 8, 8, 3, false},
        WorkShape{500, 4, 4, 4, false}}) {
    const std::vector<PadShape> small = Shapes(base), large = Shapes(more);
    for (size_t i = 0; i < small.size(); ++i)
      EXPECT_GE(LayOutPad(large[i]).bytes, LayOutPad(small[i]).bytes) << i;
  }
}

TEST(LayOutPad, NothingIsNeededForNothing) {
  EXPECT_GT(LayOutPad({{0, 0, 0, 0, true}, 64, 64, false, true}).bytes, 0);
}

float FromBf16(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}
// Exact for the small integers used here.
uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x8000) >> 16);
}

// What pad.cuh does, on the host.
void RunJobs(const PadJobs& jobs) {
  for (int i = 0; i < jobs.count; ++i) {
    const PadJob& job = jobs.job[i];
    for (int64_t at = 0; at < job.units; ++at) {
      uint32_t unit[4] = {job.fill, job.fill, job.fill, job.fill};
      const int64_t source = PadSource(job, at);
      if (source >= 0)
        std::memcpy(unit, static_cast<const char*>(job.from) + 16 * source, 16);
      char* to = static_cast<char*>(job.to) + 16 * at;
      if (job.kind == PadKind::kAddFloat) {
        float sum[4], add[4];
        std::memcpy(sum, to, 16);
        std::memcpy(add, unit, 16);
        for (int j = 0; j < 4; ++j) sum[j] += add[j];
        std::memcpy(to, sum, 16);
        continue;
      }
      if (job.kind == PadKind::kScaleBf16) {
        uint16_t x[8];
        std::memcpy(x, unit, 16);
        for (uint16_t& one : x) one = ToBf16(FromBf16(one) * job.scale);
        std::memcpy(unit, x, 16);
      }
      std::memcpy(to, unit, 16);
    }
  }
}

// Room for `shape`, of bytes that show what was not written.
std::vector<char> Room(const PadShape& shape) {
  return std::vector<char>(LayOutPad(shape).bytes, char{0x55});
}

TEST(PadPlan, KeysGetZeroColumnsAndTheirScaleAndComeBack) {
  constexpr int64_t kRows = 3 * 2;
  const PadShape shape{{3, 4, 2, 1, true}, 64, 128, true, false};
  std::vector<uint16_t> q(kRows * 64), dq(kRows * 64);
  for (int64_t i = 0; i < kRows * 64; ++i) q[i] = ToBf16(i % 100);
  std::vector<char> room = Room(shape);
  PadPlan plan(shape, room.data());
  const uint16_t* wide = q.data();
  plan.Keys(wide, plan.at().q, plan.QueryScale());
  ASSERT_EQ(plan.widen().count, 1);
  RunJobs(plan.widen());
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < 128; ++i) {
      const float x = i < 64 ? (row * 64 + i) % 100 * std::sqrt(2.0f) : 0;
      ASSERT_NEAR(FromBf16(wide[row * 128 + i]), x, 0.004f * x);
    }
  }

  uint16_t* narrow = dq.data();
  plan.KeysOut(narrow, plan.at().dq);
  std::memcpy(narrow, wide, kRows * 128 * 2);
  RunJobs(plan.narrow());
  for (int64_t i = 0; i < kRows * 64; ++i)
    ASSERT_EQ(dq[i], wide[i / 64 * 128 + i % 64]);
}

TEST(PadPlan, ChannelsThatAreNotThereDoNotDecay) {
  const PadShape shape{{2, 3, 3, 1, false}, 64, 64, false, false};
  std::vector<uint16_t> z(2 * 3 * 64, ToBf16(1));
  std::vector<char> room = Room(shape);
  PadPlan plan(shape, room.data());
  const uint16_t* wide = z.data();
  plan.Gates(wide, plan.at().z);
  RunJobs(plan.widen());
  for (int64_t i = 0; i < 2 * 3 * 128; ++i) {
    if (i % 128 < 64) {
      EXPECT_EQ(FromBf16(wide[i]), 1);
    } else {
      EXPECT_LT(FromBf16(wide[i]), -9e29f);
    }
  }
}

TEST(PadPlan, StatesGetZeroRowsAndColumnsAndComeBack) {
  constexpr int64_t kStates = 2 * 3;
  for (const auto& [keys, values] :
       {std::pair{64, 64}, std::pair{64, 128}, std::pair{128, 64}}) {
    const PadShape shape{{7, 3, 3, 2, false}, keys, values, false, true};
    std::vector<float> state(kStates * keys * values), back(state.size(), -1);
    for (size_t i = 0; i < state.size(); ++i) state[i] = i + 1;
    std::vector<char> room = Room(shape);
    PadPlan plan(shape, room.data());
    const float* wide = state.data();
    plan.State(wide, plan.at().initial_state);
    float* narrow = back.data();
    plan.StateOut(narrow, plan.at().final_state);
    RunJobs(plan.widen());
    for (int64_t n = 0; n < kStates; ++n) {
      for (int64_t key = 0; key < 128; ++key) {
        for (int64_t v = 0; v < 128; ++v) {
          const bool there = key < keys && v < values;
          ASSERT_EQ(wide[(n * 128 + key) * 128 + v],
                    there ? state[(n * keys + key) * values + v] : 0);
        }
      }
    }
    std::memcpy(narrow, wide, kStates * 128 * 128 * 4);
    RunJobs(plan.narrow());
    EXPECT_EQ(back, state);
  }
}

TEST(PadPlan, TheGradientOfTheBiasIsAddedTo) {
  const PadShape shape{{1, 2, 2, 1, true}, 64, 64, false, false};
  std::vector<float> bias(2 * 64, 5);
  std::vector<char> room = Room(shape);
  PadPlan plan(shape, room.data());
  float* wide = bias.data();
  plan.BiasOut(wide, plan.at().ddt_bias);
  RunJobs(plan.widen());
  for (int64_t i = 0; i < 2 * 128; ++i) {
    ASSERT_EQ(wide[i], 0);
    wide[i] = i;
  }
  RunJobs(plan.narrow());
  for (int64_t i = 0; i < 2 * 64; ++i)
    EXPECT_EQ(bias[i], 5 + i / 64 * 128 + i % 64);
}

TEST(PadPlan, WhatIsAbsentOrWideAlreadyStays) {
  const PadShape shape{{4, 2, 2, 1, false}, 128, 64, false, false};
  std::vector<uint16_t> q(4 * 2 * 128);
  std::vector<char> room = Room(shape);
  PadPlan plan(shape, room.data());
  const uint16_t* wide = q.data();
  plan.Keys(wide, plan.at().q, plan.QueryScale());
  EXPECT_EQ(wide, q.data());
  EXPECT_EQ(plan.QueryScale(), 1);
  float* state = nullptr;
  plan.StateOut(state, plan.at().final_state);
  EXPECT_EQ(state, nullptr);
  EXPECT_EQ(plan.widen().count + plan.narrow().count, 0);
}

TEST(PadPlan, RefusesTensorsOffTheirAlignment) {
  const PadShape shape{{4, 2, 2, 1, false}, 64, 64, false, false};
  std::vector<uint16_t> v(4 * 2 * 64 + 1);
  std::vector<char> room = Room(shape);
  PadPlan plan(shape, room.data());
  const uint16_t* wide = v.data();
  plan.Values(wide, plan.at().v);
  EXPECT_TRUE(plan.CheckAligned("kda").ok());
  const uint16_t* off = v.data() + 1;
  plan.Values(off, plan.at().o);
  EXPECT_EQ(plan.CheckAligned("kda").code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace cadre::linear_attention
