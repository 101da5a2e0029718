#include "worker/device/arena.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(Arena, SecondStepOfTheSameShapesAllocatesNothing) {
  Arena arena;
  auto step = [&] {
    for (int i = 0; i < 40; ++i) {
      arena.Allocate(DType::kF32, {1000, i + 1});
      ArenaScope scope(&arena);
      arena.AllocateZero(DType::kF64, {5000, 7});
    }
    arena.Reset();
  };
  step();
  const int64_t allocations = arena.num_allocations();
  const int64_t reserved = arena.reserved_bytes();
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(arena.num_allocations(), allocations);
  EXPECT_EQ(arena.reserved_bytes(), reserved);
}

TEST(Arena, ReleasedMemoryIsUsedAgain) {
  Arena arena;
  const Arena::Mark mark = arena.mark();
  void* first = arena.Allocate(DType::kF32, {10}).raw();
  arena.Allocate(DType::kF32, {1 << 22});  // opens another block
  arena.Release(mark);
  EXPECT_EQ(arena.Allocate(DType::kF32, {10}).raw(), first);
}

TEST(Arena, AlignsAndZeroes) {
  Arena arena;
  arena.Allocate(DType::kU8, {3});
  Tensor t = arena.AllocateZero(DType::kI64, {9});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0);
  for (int64_t v : t.span<int64_t>()) EXPECT_EQ(v, 0);
  EXPECT_EQ(arena.Allocate(DType::kF32, {0, 5}).num_elements(), 0);
}

TEST(Arena, ReservesInOneGo) {
  Arena arena;
  arena.Reserve(int64_t{4} << 20);
  EXPECT_EQ(arena.num_allocations(), 1);
  for (int i = 0; i < 4; ++i) arena.Allocate(DType::kU8, {int64_t{1} << 20});
  EXPECT_EQ(arena.num_allocations(), 1);
  arena.Reset();
  arena.Reserve(1000);
  EXPECT_EQ(arena.num_allocations(), 1);
  EXPECT_EQ(arena.peak_bytes(), int64_t{4} << 20);
}

TEST(ArenaTest, TellsTheMostInUseSinceAMoment) {
  Arena arena;
  arena.Allocate(DType::kU8, {4096});
  const Arena::Mark mark = arena.mark();
  arena.Allocate(DType::kU8, {8192});
  arena.Release(mark);
  EXPECT_EQ(arena.recent_peak_bytes(), 4096 + 8192);
  arena.RestartRecentPeak();
  EXPECT_EQ(arena.recent_peak_bytes(), 4096) << "still in use";
  arena.Allocate(DType::kU8, {1024});
  EXPECT_EQ(arena.recent_peak_bytes(), 4096 + 1024);
  EXPECT_EQ(arena.peak_bytes(), 4096 + 8192);
}

}  // namespace
}  // namespace cadre
