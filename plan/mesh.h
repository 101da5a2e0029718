#ifndef CADRE_PLAN_MESH_H_
#define CADRE_PLAN_MESH_H_

// How the ranks of a job are arranged. The world is factorised twice,
// independently: dense parameters as replicas x shards, routed experts as
// expert replicas (EDP) x expert-parallel ranks (EP). The inner index is
// contiguous, so shard and EP groups fill a link domain before they cross it.
// Pure values; thread-safe.
//
//   ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.world_size = 128,
//       .fsdp_shard_group_size = 16, .expert_parallel_size = 64}));
//   mesh.Coordinates(77);  // shard 13, replica 4, ep 13, edp 1

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cadre {

struct MeshSpec {
  int world_size = 1;
  // Ranks that share one copy of the dense parameters; divides the world.
  int fsdp_shard_group_size = 1;
  // Ranks that share one copy of the experts; divides the world.
  int expert_parallel_size = 1;
  bool operator==(const MeshSpec&) const = default;
};

struct MeshCoordinates {
  int shard = 0, replica = 0;  // dense parameters
  int ep = 0, edp = 0;         // routed experts
  bool operator==(const MeshCoordinates&) const = default;
};

enum class MeshGroup {
  kWorld,
  kShard,           // same replica: one copy of the dense parameters
  kReplica,         // same shard
  kExpertParallel,  // same edp: one copy of the experts
  kExpertReplica,   // same ep
};

// Every rank splits its communicators from the world in this order, the world
// itself first. Creation in any other order can deadlock.
inline constexpr std::array<MeshGroup, 5> kCommunicatorOrder = {
    MeshGroup::kWorld, MeshGroup::kShard, MeshGroup::kReplica,
    MeshGroup::kExpertParallel, MeshGroup::kExpertReplica};

// "world", "shard", "replica", "expert_parallel", "expert_replica".
const char* MeshGroupName(MeshGroup group);

class Mesh {
 public:
  // INVALID_ARGUMENT with the numbers and the nearest legal values.
  static absl::StatusOr<Mesh> Create(const MeshSpec& spec);

  const MeshSpec& spec() const { return spec_; }
  int world_size() const { return spec_.world_size; }
  int num_replicas() const {
    return spec_.world_size / spec_.fsdp_shard_group_size;
  }
  int num_expert_replicas() const {
    return spec_.world_size / spec_.expert_parallel_size;
  }
  int GroupSize(MeshGroup group) const;

  // 0 <= rank < world_size() (CADRE_CHECK), here and below.
  MeshCoordinates Coordinates(int rank) const;
  // Number of the rank's group of that kind: the color of Split.
  int GroupIndex(MeshGroup group, int rank) const;
  // Position in it: the key of Split.
  int RankInGroup(MeshGroup group, int rank) const;
  // World ranks of that group, ascending; position i is group rank i.
  std::vector<int> GroupRanks(MeshGroup group, int rank) const;

 private:
  explicit Mesh(const MeshSpec& spec) : spec_(spec) {}
  MeshSpec spec_;
};

// The experts of a model on a mesh: slots is the number of expert positions
// over one EP group (experts plus spare copies). num_experts 0: a dense model,
// only slots == 0 is legal. INVALID_ARGUMENT with numbers and remedy.
absl::Status ValidateExpertMesh(const Mesh& mesh, int64_t num_experts,
                                int64_t top_k, int64_t slots);

// Divisors of n on both sides of want: {largest <= want, smallest >= want}.
std::array<int64_t, 2> NearestDivisors(int64_t n, int64_t want);

}  // namespace cadre

#endif  // CADRE_PLAN_MESH_H_
