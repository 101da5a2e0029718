#include "worker/shard/mesh_communicators.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<MeshCommunicators>> MeshCommunicators::Create(
    const Mesh& mesh, std::unique_ptr<Communicator> world) {
  if (world->size() != mesh.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a mesh of ", mesh.world_size(),
        " ranks needs a communicator of as many, not ", world->size()));
  }
  std::unique_ptr<MeshCommunicators> all(
      new MeshCommunicators(mesh, std::move(world)));
  for (const MeshGroup group : kCommunicatorOrder) {
    const int i = static_cast<int>(group);
    if (mesh.GroupSize(group) == 1) continue;
    if (mesh.GroupSize(group) == mesh.world_size()) {
      all->groups_[i] = all->world();
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(all->owned_[i], all->Split(group));
    all->groups_[i] = all->owned_[i].get();
  }
  // A thread beside the training thread never shares, not even the world.
  if (mesh.GroupSize(MeshGroup::kShard) > 1) {
    CADRE_ASSIGN_OR_RETURN(all->gather_, all->Split(MeshGroup::kShard));
  }
  if (mesh.GroupSize(MeshGroup::kExpertParallel) > 1) {
    CADRE_ASSIGN_OR_RETURN(all->dispatch_,
                           all->Split(MeshGroup::kExpertParallel));
  }
  return all;
}

absl::StatusOr<std::unique_ptr<Communicator>> MeshCommunicators::Split(
    MeshGroup group) {
  const int rank = world_->rank();
  auto part = world_->Split(mesh_.GroupIndex(group, rank),
                            mesh_.RankInGroup(group, rank));
  if (part.ok()) return part;
  return Annotate(part.status(), absl::StrCat("making the communicator of the ",
                                              MeshGroupName(group), " group"));
}

void MeshCommunicators::Abort() {
  world_->Abort();
  for (const auto& part : owned_) {
    if (part != nullptr) part->Abort();
  }
  if (gather_ != nullptr) gather_->Abort();
  if (dispatch_ != nullptr) dispatch_->Abort();
}

}  // namespace cadre
