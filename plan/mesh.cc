#include "plan/mesh.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace cadre {
namespace {

// " (nearest: 4 or 8)"
std::string NearestText(int64_t n, int64_t want) {
  const auto [below, above] = NearestDivisors(n, want);
  if (below == above) return absl::StrCat("nearest: ", below);
  return absl::StrCat("nearest: ", below, " or ", above);
}

absl::Status CheckDivides(const char* field, int64_t value, int64_t world) {
  if (value < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.", field, " is ", value, "; it must be at least 1"));
  }
  if (world % value != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.", field, " is ", value, ", which does not divide the ",
        world, " workers of the job; ", NearestText(world, value)));
  }
  return absl::OkStatus();
}

}  // namespace

const char* MeshGroupName(MeshGroup group) {
  switch (group) {
    case MeshGroup::kWorld:
      return "world";
    case MeshGroup::kShard:
      return "shard";
    case MeshGroup::kReplica:
      return "replica";
    case MeshGroup::kExpertParallel:
      return "expert_parallel";
    case MeshGroup::kExpertReplica:
      return "expert_replica";
  }
  return "?";
}

std::array<int64_t, 2> NearestDivisors(int64_t n, int64_t want) {
  CADRE_CHECK(n >= 1) << n;
  int64_t below = 1, above = n;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    for (int64_t divisor : {d, n / d}) {
      if (divisor <= want && divisor > below) below = divisor;
      if (divisor >= want && divisor < above) above = divisor;
    }
  }
  if (want > n) below = n;
  if (want < 1) above = 1;
  return {below, above};
}

absl::StatusOr<Mesh> Mesh::Create(const MeshSpec& spec) {
  if (spec.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job needs at least 1 worker, not ", spec.world_size));
  }
  absl::Status status = CheckDivides(
      "fsdp_shard_group_size", spec.fsdp_shard_group_size, spec.world_size);
  if (!status.ok()) return status;
  status = CheckDivides("expert_parallel_size", spec.expert_parallel_size,
                        spec.world_size);
  if (!status.ok()) return status;
  return Mesh(spec);
}

int Mesh::GroupSize(MeshGroup group) const {
  switch (group) {
    case MeshGroup::kWorld:
      return world_size();
    case MeshGroup::kShard:
      return spec_.fsdp_shard_group_size;
    case MeshGroup::kReplica:
      return num_replicas();
    case MeshGroup::kExpertParallel:
      return spec_.expert_parallel_size;
    case MeshGroup::kExpertReplica:
      return num_expert_replicas();
  }
  return 0;
}

MeshCoordinates Mesh::Coordinates(int rank) const {
  CADRE_CHECK(0 <= rank && rank < world_size())
      << "rank " << rank << " of " << world_size();
  return {.shard = rank % spec_.fsdp_shard_group_size,
          .replica = rank / spec_.fsdp_shard_group_size,
          .ep = rank % spec_.expert_parallel_size,
          .edp = rank / spec_.expert_parallel_size};
}

int Mesh::GroupIndex(MeshGroup group, int rank) const {
  const MeshCoordinates at = Coordinates(rank);
  switch (group) {
    case MeshGroup::kWorld:
      return 0;
    case MeshGroup::kShard:
      return at.replica;
    case MeshGroup::kReplica:
      return at.shard;
    case MeshGroup::kExpertParallel:
      return at.edp;
    case MeshGroup::kExpertReplica:
      return at.ep;
  }
  return 0;
}

int Mesh::RankInGroup(MeshGroup group, int rank) const {
  const MeshCoordinates at = Coordinates(rank);
  switch (group) {
    case MeshGroup::kWorld:
      return rank;
    case MeshGroup::kShard:
      return at.shard;
    case MeshGroup::kReplica:
      return at.replica;
    case MeshGroup::kExpertParallel:
      return at.ep;
    case MeshGroup::kExpertReplica:
      return at.edp;
  }
  return 0;
}

std::vector<int> Mesh::GroupRanks(MeshGroup group, int rank) const {
  std::vector<int> ranks;
  const int index = GroupIndex(group, rank);
  for (int r = 0; r < world_size(); ++r) {
    if (GroupIndex(group, r) == index) ranks.push_back(r);
  }
  return ranks;
}

absl::Status ValidateExpertMesh(const Mesh& mesh, int64_t num_experts,
                                int64_t top_k, int64_t slots) {
  const int64_t ep = mesh.spec().expert_parallel_size;
  if (num_experts == 0) {
    if (ep > 1 || slots != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parallelism.expert_parallel_size is ", ep, " with ", slots,
          " expert slots, but the model has no experts; "
          "set it to 1"));
    }
    return absl::OkStatus();
  }
  if (top_k < 1 || top_k > num_experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model routes each token to ", top_k, " of ", num_experts,
        " experts; the count must lie between 1 and ", num_experts));
  }
  if (slots < num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(slots, " expert slots cannot hold ", num_experts,
                     " experts; raise moe.spare_slots_per_rank or lower "
                     "parallelism.expert_parallel_size from ",
                     ep));
  }
  if (slots % ep != 0) {
    const int64_t below = slots / ep * ep;
    const int64_t above = below + ep;
    return absl::InvalidArgumentError(absl::StrCat(
        "parallelism.expert_parallel_size is ", ep, ", which does not divide ",
        slots, " expert slots (", num_experts, " experts); nearest sizes: ",
        NearestDivisors(slots, ep)[0], " or ", NearestDivisors(slots, ep)[1],
        ", nearest slots: ", below < num_experts ? above : below, " or ",
        above));
  }
  return absl::OkStatus();
}

}  // namespace cadre
