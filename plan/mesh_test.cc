#include "plan/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Mesh, FactorisesDenseAndExpertsIndependently) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                       Mesh::Create({.world_size = 128,
                                     .fsdp_shard_group_size = 16,
                                     .expert_parallel_size = 64}));
  EXPECT_EQ(mesh.num_replicas(), 8);
  EXPECT_EQ(mesh.num_expert_replicas(), 2);
  EXPECT_EQ(mesh.Coordinates(77),
            (MeshCoordinates{.shard = 13, .replica = 4, .ep = 13, .edp = 1}));
  EXPECT_THAT(mesh.GroupRanks(MeshGroup::kExpertReplica, 77),
              ElementsAre(13, 77));
  EXPECT_THAT(mesh.GroupRanks(MeshGroup::kReplica, 77),
              ElementsAre(13, 29, 45, 61, 77, 93, 109, 125));
  EXPECT_EQ(mesh.GroupRanks(MeshGroup::kShard, 77).front(), 64);
  EXPECT_EQ(mesh.GroupRanks(MeshGroup::kShard, 77).back(), 79);
}

TEST(Mesh, SizesNeedNotDivideEachOther) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                       Mesh::Create({.world_size = 12,
                                     .fsdp_shard_group_size = 4,
                                     .expert_parallel_size = 6}));
  EXPECT_EQ(mesh.Coordinates(7),
            (MeshCoordinates{.shard = 3, .replica = 1, .ep = 1, .edp = 1}));
}

TEST(Mesh, GroupsPartitionTheWorldAndAgreeWithSplit) {
  for (const MeshSpec& spec : {MeshSpec{1, 1, 1}, MeshSpec{4, 2, 4},
                               MeshSpec{12, 4, 6}, MeshSpec{8, 8, 1}}) {
    ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(spec));
    for (const MeshGroup group : kCommunicatorOrder) {
      std::set<std::pair<int, int>> seats;
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const std::vector<int> ranks = mesh.GroupRanks(group, rank);
        EXPECT_EQ(static_cast<int>(ranks.size()), mesh.GroupSize(group));
        EXPECT_EQ(ranks[mesh.RankInGroup(group, rank)], rank)
            << MeshGroupName(group);
        seats.insert(
            {mesh.GroupIndex(group, rank), mesh.RankInGroup(group, rank)});
      }
      EXPECT_EQ(static_cast<int>(seats.size()), mesh.world_size());
    }
  }
}

TEST(Mesh, CommunicatorsAreCreatedInOneOrder) {
  EXPECT_THAT(
      kCommunicatorOrder,
      ElementsAre(MeshGroup::kWorld, MeshGroup::kShard, MeshGroup::kReplica,
                  MeshGroup::kExpertParallel, MeshGroup::kExpertReplica));
}

TEST(Mesh, ErrorsCarryNumbersAndNearestValues) {
  EXPECT_THAT(Mesh::Create({.world_size = 12, .fsdp_shard_group_size = 5}),
              StatusIs(kInvalid, AllOf(HasSubstr("fsdp_shard_group_size is 5"),
                                       HasSubstr("12 workers"),
                                       HasSubstr("nearest: 4 or 6"))));
  EXPECT_THAT(Mesh::Create({.world_size = 8, .expert_parallel_size = 16}),
              StatusIs(kInvalid, AllOf(HasSubstr("expert_parallel_size is 16"),
                                       HasSubstr("nearest: 8"))));
  EXPECT_THAT(Mesh::Create({.world_size = 8, .expert_parallel_size = 0}),
              StatusIs(kInvalid, HasSubstr("at least 1")));
  EXPECT_THAT(Mesh::Create({.world_size = 0}),
              StatusIs(kInvalid, HasSubstr("at least 1 worker")));
}

TEST(Mesh, NearestDivisorsBracketTheWish) {
  EXPECT_THAT(NearestDivisors(12, 5), ElementsAre(4, 6));
  EXPECT_THAT(NearestDivisors(12, 6), ElementsAre(6, 6));
  EXPECT_THAT(NearestDivisors(13, 5), ElementsAre(1, 13));
  EXPECT_THAT(NearestDivisors(8, 99), ElementsAre(8, 8));
  EXPECT_THAT(NearestDivisors(8, 0), ElementsAre(1, 1));
}

TEST(ExpertMesh, ChecksSlotsExpertsAndTopK) {
  ASSERT_OK_AND_ASSIGN(
      const Mesh mesh,
      Mesh::Create({.world_size = 64, .expert_parallel_size = 64}));
  EXPECT_OK(ValidateExpertMesh(mesh, 896, 16, 896));
  EXPECT_OK(ValidateExpertMesh(mesh, 896, 16, 960));
  EXPECT_THAT(
      ValidateExpertMesh(mesh, 900, 16, 900),
      StatusIs(kInvalid, AllOf(HasSubstr("64"), HasSubstr("900"),
                               HasSubstr("60 or 75"), HasSubstr("960"))));
  EXPECT_THAT(ValidateExpertMesh(mesh, 896, 16, 832),
              StatusIs(kInvalid, HasSubstr("832 expert slots cannot hold")));
  EXPECT_THAT(ValidateExpertMesh(mesh, 896, 0, 896), StatusIs(kInvalid));
  EXPECT_THAT(ValidateExpertMesh(mesh, 896, 897, 896), StatusIs(kInvalid));
  EXPECT_THAT(ValidateExpertMesh(mesh, 0, 0, 0),
              StatusIs(kInvalid, HasSubstr("no experts")));
  ASSERT_OK_AND_ASSIGN(const Mesh one, Mesh::Create({.world_size = 64}));
  EXPECT_OK(ValidateExpertMesh(one, 0, 0, 0));
}

}  // namespace
}  // namespace cadre
