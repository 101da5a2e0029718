#include "kernels/common/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "kernels/common/exec.h"

namespace cadre {
namespace {

TEST(ThreadPool, RunsEveryPieceOnce) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> calls(round);
    pool.Run(round, [&](int64_t i) { ++calls[i]; });
    for (const auto& n : calls) EXPECT_EQ(n, 1);
  }
}

TEST(ThreadPool, NestedLoopsRunInline) {
  ThreadPool pool(3);
  Exec exec{.pool = &pool};
  std::atomic<int64_t> sum = 0;
  ParallelFor(exec, 10, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i)
      ParallelFor(exec, 10, 1, [&](int64_t c, int64_t d) { sum += d - c; });
  });
  EXPECT_EQ(sum, 100);
}

TEST(ParallelFor, PartitionDoesNotDependOnThreads) {
  auto boundaries = [](ThreadPool* pool) {
    std::vector<std::atomic<int>> begins(1000);
    ParallelFor({.pool = pool}, 1000, 7,
                [&](int64_t b, int64_t) { begins[b] = 1; });
    return std::vector<int>(begins.begin(), begins.end());
  };
  ThreadPool two(2), five(5);
  EXPECT_EQ(boundaries(nullptr), boundaries(&two));
  EXPECT_EQ(boundaries(&two), boundaries(&five));
}

}  // namespace
}  // namespace cadre
