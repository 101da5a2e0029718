#include "worker/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"
#include "worker/checkpoint/retention.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::cadre::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest()
      : root_(::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
    dir_ = root_ + "/" + CheckpointDirName(12, 3);
  }

  // Two ranks; rank 1 owns another weight.
  CheckpointManifest WriteBoth() {
    CheckpointManifest manifest{
        .job = "jobs/j", .attempt_epoch = 3, .step = 12, .method = "lora"};
    manifest.mesh.world_size = 2;
    for (int rank = 0; rank < 2; ++rank) {
      const TensorPiece weight{.name = rank == 0 ? "a" : "b",
                               .global_shape = {2},
                               .value = Tensor(w_[rank], DType::kF32, {2})};
      TensorPiece state[] = {weight, weight};
      state[0].name += ".m";
      state[0].value = Tensor(m_[rank], DType::kF32, {2});
      state[1].name += ".v";
      const RankState rank_state{
          .rank = rank, .step = 12, .data_cursor = "0:7", .seed = 9};
      auto files = WriteRankFiles(
          dir_,
          {.state = rank_state, .weights = {&weight, 1}, .optimizer = state});
      EXPECT_OK(files);
      manifest.files.insert(manifest.files.end(), files->begin(), files->end());
    }
    return manifest;
  }

  std::string root_, dir_;
  float w_[2][2] = {{1, 2}, {3, 4}}, m_[2][2] = {{5, 6}, {7, 8}};
};

TEST_F(CheckpointTest, SealedCheckpointReadsBackByLogicalName) {
  const CheckpointManifest manifest = WriteBoth();
  EXPECT_THAT(VerifyCheckpoint(dir_), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(const SealedCheckpoint sealed,
                       SealCheckpoint(dir_, manifest));
  ASSERT_OK_AND_ASSIGN(auto reader,
                       CheckpointReader::Open(dir_, sealed.manifest_sha256));
  EXPECT_THAT(reader->WeightNames(), ElementsAre("a", "b"));
  float out[2];
  const Tensor both(out, DType::kF32, {2});
  ASSERT_OK(reader->ReadWeight("b", {2}, 0, both));
  EXPECT_THAT(out, ElementsAre(3, 4));
  ASSERT_OK(reader->ReadOptimizer("a.m", {2}, 0, both));
  EXPECT_THAT(out, ElementsAre(5, 6));
  EXPECT_EQ(reader->shared_state().data_cursor, "0:7");
  EXPECT_EQ(reader->manifest().mesh.world_size, 2);
  EXPECT_THAT(reader->ReadWeight("c", {2}, 0, both),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(" c")));
  EXPECT_THAT(reader->ReadWeight("a", {1, 2}, 0, both),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  // Sealing again changes nothing.
  ASSERT_OK_AND_ASSIGN(const SealedCheckpoint again,
                       SealCheckpoint(dir_, manifest));
  EXPECT_EQ(again.manifest_sha256, sealed.manifest_sha256);
}

// A tensor of 3 x 4 in pieces that the ranks of another mesh cut otherwise.
class PiecesTest : public CheckpointTest {
 protected:
  PiecesTest() {
    for (int i = 0; i < 12; ++i) values_[i] = i;
  }
  // One rank per piece [begin, end).
  CheckpointManifest Write(const std::vector<std::pair<int, int>>& pieces) {
    CheckpointManifest manifest{.job = "jobs/j", .attempt_epoch = 3};
    int rank = 0;
    for (const auto& [begin, end] : pieces) {
      const TensorPiece piece{
          .name = "layers.0.experts",
          .global_shape = {3, 4},
          .begin = begin,
          .value = Tensor(values_ + begin, DType::kF32, {end - begin})};
      auto files = WriteRankFiles(
          dir_, {.state = {.rank = rank++}, .weights = {&piece, 1}});
      EXPECT_OK(files);
      manifest.files.insert(manifest.files.end(), files->begin(), files->end());
    }
    return manifest;
  }
  float values_[12];
};

TEST_F(PiecesTest, AnyStretchIsReadFromAnyPieces) {
  ASSERT_OK(SealCheckpoint(dir_, Write({{0, 5}, {5, 6}, {6, 12}})));
  ASSERT_OK_AND_ASSIGN(auto reader, CheckpointReader::Open(dir_));
  EXPECT_THAT(reader->WeightNames(), ElementsAre("layers.0.experts"));
  for (int begin = 0; begin < 12; ++begin) {
    for (int end = begin + 1; end <= 12; ++end) {
      std::vector<float> out(end - begin);
      ASSERT_OK(
          reader->ReadWeight("layers.0.experts", {3, 4}, begin,
                             Tensor(out.data(), DType::kF32, {end - begin})));
      for (int i = begin; i < end; ++i) EXPECT_EQ(out[i - begin], i);
    }
  }
}

TEST_F(PiecesTest, WhatIsMissingOrTwiceIsNotSealed) {
  for (const auto& pieces : std::vector<std::vector<std::pair<int, int>>>{
           {{0, 5}, {6, 12}}, {{0, 5}, {5, 11}}, {{0, 6}, {5, 12}}}) {
    fs::remove_all(dir_);
    EXPECT_THAT(SealCheckpoint(dir_, Write(pieces)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("layers.0.experts [3, 4]")));
  }
}

TEST_F(CheckpointTest, DamageIsFoundAndNamed) {
  const CheckpointManifest manifest = WriteBoth();
  ASSERT_OK_AND_ASSIGN(const SealedCheckpoint sealed,
                       SealCheckpoint(dir_, manifest));
  EXPECT_THAT(VerifyCheckpoint(dir_, std::string(64, '0')),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("manifest")));
  const std::string weights = dir_ + "/adapter-00001.safetensors";
  {
    std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  EXPECT_THAT(CheckpointReader::Open(dir_).status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("adapter-00001.safetensors")));
  fs::remove(weights);
  EXPECT_THAT(VerifyCheckpoint(dir_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("missing")));
  EXPECT_THAT(SealCheckpoint(dir_, manifest),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("adapter-00001")));
}

TEST(Manifest, RoundTripsAndRefusesWhatLeadsOut) {
  CheckpointManifest m{.job = "jobs/j", .attempt_epoch = 1, .step = 5};
  m.files = {{.path = "b", .bytes = 1, .sha256 = "x"},
             {.path = "a", .bytes = 2, .sha256 = "y"}};
  ASSERT_OK_AND_ASSIGN(const CheckpointManifest back,
                       CheckpointManifest::Parse(m.ToJson()));
  EXPECT_EQ(back.ToJson(), m.ToJson());
  EXPECT_EQ(back.files[0].path, "a");
  m.files[0].path = "../b";
  EXPECT_THAT(CheckpointManifest::Parse(m.ToJson()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("../b")));
  EXPECT_THAT(CheckpointManifest::Parse("{}"),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(CheckpointManifest::Parse("nonsense"),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(CheckpointTest, RetentionKeepsNewestAndMilestones) {
  std::vector<StoredCheckpoint> stored;
  for (int64_t step : {10, 20, 30, 40}) {
    stored.push_back({.path = "s", .step = step, .sealed = true});
  }
  stored.push_back({.path = "u", .step = 35, .attempt_epoch = 2});
  stored.push_back({.path = "v", .step = 50, .attempt_epoch = 2});
  std::vector<int64_t> removed;
  for (const auto& c : CheckpointsToRemove(stored, 2, 20, 2)) {
    removed.push_back(c.step);
  }
  EXPECT_THAT(removed, ElementsAre(35, 10));

  ASSERT_OK(SealCheckpoint(dir_, WriteBoth()));
  fs::create_directories(root_ + "/step-1.attempt-1");  // not ours
  ASSERT_OK_AND_ASSIGN(const auto listed, ListCheckpoints(root_));
  ASSERT_EQ(listed.size(), 1);
  EXPECT_TRUE(listed[0].sealed);
  EXPECT_EQ(listed[0].attempt_epoch, 3);
  ASSERT_OK(RemoveCheckpoint(dir_));
  EXPECT_FALSE(fs::exists(dir_));
  EXPECT_OK(RemoveCheckpoint(dir_));
  EXPECT_THAT(RemoveCheckpoint(root_),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace cadre
