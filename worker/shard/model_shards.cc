#include "worker/shard/model_shards.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/transfer.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<ModelShards>> ModelShards::Create(
    const Exec& exec, ParameterRegistry* parameters, const DenseUnits* units,
    const MeshCommunicators* communicators) {
  std::unique_ptr<ModelShards> shards(new ModelShards(exec, parameters));
  const MeshCoordinates at = communicators->coordinates();
  Communicator* const shard = communicators->group(MeshGroup::kShard);
  Communicator* const replica = communicators->group(MeshGroup::kReplica);
  const bool counted = at.replica == 0;
  if (shard != nullptr) {
    CADRE_ASSIGN_OR_RETURN(
        shards->gatherer_,
        UnitGatherer::Create(units, {.gather = communicators->gather(),
                                     .shard = shard,
                                     .replica = replica,
                                     .counted = counted}));
    shards->owned_ = shards->gatherer_->Owned();
  } else if (!units->units().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model is in ", units->sharding().num_shards,
                     " shards, the mesh has none"));
  }
  std::vector<Parameter*> dense, experts;
  for (Parameter* parameter : parameters->Trainable()) {
    if (parameter->unit >= 0) continue;
    (parameter->domain == ParamDomain::kExpert ? experts : dense)
        .push_back(parameter);
  }
  CADRE_ASSIGN_OR_RETURN(
      shards->dense_,
      ParameterLane::Create(exec, std::move(dense),
                            {.slices = shard, .copies = replica}));
  CADRE_ASSIGN_OR_RETURN(
      shards->experts_,
      ParameterLane::Create(
          exec, std::move(experts),
          {.slices = communicators->group(MeshGroup::kExpertReplica)}));
  for (OwnedSlice slice : shards->dense_->Owned()) {
    slice.counted = counted;
    shards->owned_.push_back(slice);
  }
  for (const OwnedSlice& slice : shards->experts_->Owned()) {
    shards->owned_.push_back(slice);
  }
  return shards;
}

absl::Status ModelShards::ZeroGradients() {
  for (const Parameter* parameter : parameters_->Trainable()) {
    if (parameter->unit >= 0) continue;
    CADRE_RETURN_IF_ERROR(SetZero(exec_, parameter->grad));
  }
  return gatherer_ == nullptr ? absl::OkStatus() : gatherer_->ZeroGradients();
}

absl::Status ModelShards::ReduceGradients() {
  if (gatherer_ != nullptr) {
    CADRE_RETURN_IF_ERROR(gatherer_->ReduceGradients());
  }
  CADRE_RETURN_IF_ERROR(
      Annotate(dense_->ReduceGradients(), "summing dense gradients"));
  return Annotate(experts_->ReduceGradients(), "summing expert gradients");
}

absl::Status ModelShards::GatherValues() {
  CADRE_RETURN_IF_ERROR(
      Annotate(dense_->GatherValues(), "sharing updated dense values"));
  return Annotate(experts_->GatherValues(), "sharing updated expert values");
}

ModelShards::Memory ModelShards::memory() const {
  Memory memory;
  for (const Parameter* parameter : parameters_->all()) {
    if (parameter->unit >= 0) continue;
    memory.weights += parameter->value.num_bytes();
    if (parameter->is_adapter) memory.adapter += parameter->value.num_bytes();
    memory.gradients += parameter->grad.num_bytes();
  }
  memory.reduce = dense_->buffer_bytes() + experts_->buffer_bytes();
  if (gatherer_ == nullptr) return memory;
  const UnitGatherer::Memory units = gatherer_->memory();
  memory.weights += units.slices;
  memory.gradients += units.gradients;
  memory.gather = units.gather;
  memory.reduce += units.reduce;
  return memory;
}

}  // namespace cadre
