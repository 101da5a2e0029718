#include "worker/data/packed_dataset.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

// Sample i holds 1000 * i, 1000 * i + 1, ...; every third token untrained.
std::vector<EncodedSample> Samples(int count) {
  std::mt19937 random(1);
  std::vector<EncodedSample> samples(count);
  for (int i = 0; i < count; ++i) {
    const int length = 2 + static_cast<int>(random() % 30);
    for (int t = 0; t < length; ++t) {
      samples[i].ids.push_back(1000 * i + t);
      samples[i].trained.push_back(t % 3 != 0);
    }
    samples[i].full_length = length;
  }
  return samples;
}

PackedDatasetOptions Options() {
  PackedDatasetOptions options;
  options.encode.max_seq_len = 40;
  options.global_batch_size = 8;
  options.micro_batch_size = 2;
  options.seed = 7;
  return options;
}

std::unique_ptr<PackedDataset> Make(const PackedDatasetOptions& options,
                                    int samples = 50) {
  return PackedDataset::FromSamples(Samples(samples), options).value();
}

// The documents of a batch, in order, each as its ids.
std::vector<std::vector<int32_t>> Documents(const Batch& batch) {
  std::vector<std::vector<int32_t>> documents;
  for (int64_t d = 0; d < batch.num_docs(); ++d) {
    documents.emplace_back(batch.ids.begin() + batch.cu_seqlens[d],
                           batch.ids.begin() + batch.cu_seqlens[d + 1]);
  }
  return documents;
}

TEST(PackedDatasetTest, TargetsStayInsideTheirDocument) {
  auto data = Make(Options());
  for (int i = 0; i < 10; ++i) {
    for (const Batch& batch : data->Next().micro_batches) {
      ASSERT_EQ(batch.ids.size(), batch.targets.size());
      ASSERT_EQ(batch.num_real_tokens(), batch.num_tokens());
      EXPECT_LE(batch.num_tokens(), 2 * 40);
      for (int64_t d = 0; d < batch.num_docs(); ++d) {
        const int32_t end = batch.cu_seqlens[d + 1];
        EXPECT_EQ(batch.targets[end - 1], Batch::kIgnore);
        for (int32_t t = batch.cu_seqlens[d]; t + 1 < end; ++t) {
          const int32_t next = batch.ids[t + 1];
          EXPECT_EQ(batch.targets[t],
                    next % 1000 % 3 != 0 ? next : Batch::kIgnore);
        }
      }
    }
  }
}

TEST(PackedDatasetTest, AnEpochHoldsEverySampleOnce) {
  for (bool packing : {false, true}) {
    PackedDatasetOptions options = Options();
    options.packing = packing;
    options.global_batch_size = 1;
    options.micro_batch_size = 1;
    auto data = Make(options);
    if (packing) {
      EXPECT_LT(data->rows_per_epoch(), 35);
    } else {
      EXPECT_EQ(data->rows_per_epoch(), 50);
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<int32_t> seen;
      for (int64_t row = 0; row < data->rows_per_epoch(); ++row) {
        const TrainStep step = data->Next();
        EXPECT_EQ(step.epoch, epoch);
        for (const auto& document : Documents(step.micro_batches[0])) {
          EXPECT_TRUE(seen.insert(document[0]).second);
        }
      }
      EXPECT_EQ(seen.size(), 50);
    }
  }
}

TEST(PackedDatasetTest, UnionOverRanksIsTheSingleRanksBatch) {
  auto whole = Make(Options());
  std::vector<std::unique_ptr<PackedDataset>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    PackedDatasetOptions options = Options();
    options.rank = rank;
    options.num_ranks = 4;
    ranks.push_back(Make(options));
  }
  for (int i = 0; i < 12; ++i) {  // over the end of an epoch
    const TrainStep expected = whole->Next();
    std::vector<std::vector<int32_t>> wanted, got;
    int64_t targets = 0, tokens = 0;
    for (const Batch& batch : expected.micro_batches) {
      for (auto& document : Documents(batch)) wanted.push_back(document);
      targets += batch.num_targets();
      tokens += batch.num_tokens();
    }
    EXPECT_EQ(expected.global_targets, targets);
    EXPECT_EQ(expected.global_tokens, tokens);
    EXPECT_EQ(expected.micro_batches.size(), 4);
    for (auto& rank : ranks) {
      const TrainStep step = rank->Next();
      EXPECT_EQ(step.global_targets, targets);
      EXPECT_EQ(step.micro_batches.size(), 1);
      for (auto& document : Documents(step.micro_batches[0])) {
        got.push_back(document);
      }
    }
    EXPECT_EQ(got, wanted);
  }
}

TEST(PackedDatasetTest, ResumesExactlyFromACursor) {
  auto undisturbed = Make(Options());
  for (int i = 0; i < 5; ++i) undisturbed->Next();
  const std::string saved = undisturbed->cursor().Serialize();
  auto resumed = Make(Options());
  ASSERT_OK_AND_ASSIGN(const DataCursor cursor, DataCursor::Parse(saved));
  ASSERT_OK(resumed->Seek(cursor));
  for (int i = 0; i < 10; ++i) {
    const TrainStep a = undisturbed->Next();
    const TrainStep b = resumed->Next();
    ASSERT_EQ(a.micro_batches.size(), b.micro_batches.size());
    for (size_t m = 0; m < a.micro_batches.size(); ++m) {
      EXPECT_EQ(a.micro_batches[m].ids, b.micro_batches[m].ids);
    }
  }
  EXPECT_EQ(undisturbed->cursor(), resumed->cursor());
  EXPECT_THAT(resumed->Seek({.epoch = 0, .next_row = 100000}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(DataCursor::Parse("1:x").ok());
  EXPECT_FALSE(DataCursor::Parse("-1:0").ok());
}

TEST(PackedDatasetTest, ShufflesByTheSeedAloneAndAnewEachEpoch) {
  const auto first_ids = [](PackedDataset& data) {
    return data.Next().micro_batches[0].ids;
  };
  PackedDatasetOptions other = Options();
  other.seed = 8;
  auto a = Make(Options()), b = Make(Options()), c = Make(other);
  const auto ids = first_ids(*a);
  EXPECT_EQ(ids, first_ids(*b));
  EXPECT_NE(ids, first_ids(*c));
  ASSERT_OK(a->Seek({.epoch = 1, .next_row = 0}));
  EXPECT_NE(ids, first_ids(*a));
  PackedDatasetOptions in_order = Options();
  in_order.shuffle = false;
  auto d = Make(in_order);
  EXPECT_EQ(first_ids(*d)[0], 0);
}

TEST(PackedDatasetTest, CountsStepsOfWholeAndPartialEpochs) {
  PackedDatasetOptions options = Options();
  options.packing = false;
  auto data = Make(options);  // 50 rows, 8 a step
  EXPECT_EQ(data->StepsForEpochs(1), 7);
  EXPECT_EQ(data->StepsForEpochs(4), 25);
  EXPECT_EQ(data->StepsForEpochs(0.001), 1);
}

TEST(PackedDatasetTest, EvaluatesEverySampleOnceOverTheRanks) {
  std::set<int32_t> seen;
  std::set<size_t> counts;
  for (int rank = 0; rank < 3; ++rank) {
    PackedDatasetOptions options = Options();
    options.global_batch_size = 6;
    options.rank = rank;
    options.num_ranks = 3;
    const auto batches = Make(options)->EvalBatches();
    counts.insert(batches.size());
    for (const Batch& batch : batches) {
      for (const auto& document : Documents(batch)) {
        EXPECT_TRUE(seen.insert(document[0]).second);
      }
    }
  }
  EXPECT_EQ(seen.size(), 50);
  EXPECT_EQ(counts.size(), 1);
}

TEST(PackedDatasetTest, RefusesSizesThatDoNotDivide) {
  PackedDatasetOptions options = Options();
  options.num_ranks = 3;
  EXPECT_THAT(
      PackedDataset::FromSamples(Samples(5), options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 6")));
  EXPECT_THAT(PackedDataset::FromSamples({}, Options()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
