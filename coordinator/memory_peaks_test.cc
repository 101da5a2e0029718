#include "coordinator/memory_peaks.h"

#include <gmock/gmock.h>

#include <vector>

#include "coordinator/ledger.h"

namespace cadre::coordinator {
namespace {

using ::testing::ElementsAre;

v1::MemoryPeak Peak(int64_t bytes, int64_t planned, int64_t expected) {
  v1::MemoryPeak peak;
  peak.set_peak_bytes(bytes);
  peak.set_planned_bytes(planned);
  peak.set_expected_bytes(expected);
  return peak;
}

std::vector<int> Ranks(const v1::Attempt& attempt) {
  std::vector<int> ranks;
  for (const auto& peak : attempt.memory_peaks()) ranks.push_back(peak.rank());
  return ranks;
}

TEST(MemoryPeaks, LieByRankAndTheNewestWordCounts) {
  v1::Job job;
  TakeMemoryPeak(Peak(1, 0, 0), 0, &job);  // no attempt: nothing to add to
  v1::Attempt* const attempt = job.add_attempts();
  for (const int rank : {2, 0, 3, 1}) {
    TakeMemoryPeak(Peak(10 + rank, 20, 0), rank, &job);
  }
  TakeMemoryPeak(Peak(15, 20, 16), 2, &job);
  EXPECT_THAT(Ranks(*attempt), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(attempt->memory_peaks(1).peak_bytes(), 11);
  EXPECT_EQ(attempt->memory_peaks(2).peak_bytes(), 15);
  EXPECT_EQ(attempt->memory_peaks(2).expected_bytes(), 16);
}

TEST(MemoryPeaks, TheWorstRankIsToldAndKept) {
  JobChange change;
  v1::Attempt* const attempt = change.job().add_attempts();
  TellMemory(*attempt, &change);
  EXPECT_TRUE(change.events.empty());
  for (int i = 0; i < 3; ++i) attempt->add_workers("w");
  TakeMemoryPeak(Peak(900'000'000, 1'200'000'000, 1'000'000'000), 0,
                 &change.job());
  TakeMemoryPeak(Peak(812'000'000, 1'200'000'000, 820'000'000), 1,
                 &change.job());
  TakeMemoryPeak(Peak(1'100'000'000, 1'200'000'000, 0), 2, &change.job());
  TellMemory(*attempt, &change);
  ASSERT_EQ(change.events.size(), 1);
  EXPECT_EQ(change.events[0].type(), "MEMORY_PEAK");
  EXPECT_EQ(change.events[0].message(),
            "peak 812 MB of planned 820 MB (99.0 %) for what was routed, "
            "1.20 GB at worst, rank 1 of 3");
  EXPECT_EQ(change.events[0].data().at("expected_bytes"), "820000000");
  KeepWorstPeak(0, &change.job());
  EXPECT_THAT(Ranks(*attempt), ElementsAre(1));
}

TEST(MemoryPeaks, WithoutAPlanTheFullestIsTold) {
  JobChange change;
  v1::Attempt* const attempt = change.job().add_attempts();
  attempt->add_workers("w");
  TakeMemoryPeak(Peak(2'000'000, 0, 0), 0, &change.job());
  TellMemory(*attempt, &change);
  ASSERT_EQ(change.events.size(), 1);
  EXPECT_EQ(change.events[0].message(), "peak 2.00 MB, rank 0 of 1");
}

}  // namespace
}  // namespace cadre::coordinator
