#ifndef CADRE_WORKER_SHARD_MESH_COMMUNICATORS_H_
#define CADRE_WORKER_SHARD_MESH_COMMUNICATORS_H_

// The communicators of one rank: one per group of the mesh, and one of its own
// for each thread that communicates beside the training thread. Every rank
// makes them in one order: kCommunicatorOrder (world, shard, replica, expert
// parallel, expert replica), then gather, then dispatch. Owns them; the
// accessors are thread-safe, the communicators as communicator.h says.

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "plan/mesh.h"
#include "worker/comm/communicator.h"

namespace cadre {

class MeshCommunicators {
 public:
  // INVALID_ARGUMENT where the communicator is not of the mesh's size. Every
  // rank calls it at the same time.
  static absl::StatusOr<std::unique_ptr<MeshCommunicators>> Create(
      const Mesh& mesh, std::unique_ptr<Communicator> world);

  const Mesh& mesh() const { return mesh_; }
  MeshCoordinates coordinates() const {
    return mesh_.Coordinates(world_->rank());
  }
  Communicator* world() const { return world_.get(); }
  // For the training thread; null for a group of one. A group that is the world
  // shares its communicator.
  Communicator* group(MeshGroup group) const {
    return groups_[static_cast<int>(group)];
  }
  // The shard group, for the thread that gathers; null without shards.
  Communicator* gather() const { return gather_.get(); }
  // The expert-parallel group, for the thread that dispatches; null for one.
  Communicator* dispatch() const { return dispatch_.get(); }

  // Any thread: makes calls under way on every one of them fail with ABORTED.
  void Abort();

 private:
  MeshCommunicators(const Mesh& mesh, std::unique_ptr<Communicator> world)
      : mesh_(mesh), world_(std::move(world)) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Split(MeshGroup group);

  const Mesh mesh_;
  const std::unique_ptr<Communicator> world_;
  std::array<std::unique_ptr<Communicator>, kCommunicatorOrder.size()> owned_;
  std::array<Communicator*, kCommunicatorOrder.size()> groups_ = {};
  std::unique_ptr<Communicator> gather_, dispatch_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_MESH_COMMUNICATORS_H_
