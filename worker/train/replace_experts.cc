#include "worker/train/replace_experts.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/replacement.h"
#include "worker/moe/expert_moves.h"

namespace cadre {
namespace {

// A tensor of the optimizer whose rows must follow the experts: all of it, or,
// where expert replicas share the work, this rank's stretch of it.
struct State {
  const Optimizer::Slot* slot = nullptr;
  Tensor part;
  // A master is a value: every copy of an expert has one. Moments are not.
  bool home_only = true;
};

using States = std::map<const Parameter*, std::vector<State>>;

States StatesOf(const Optimizer& optimizer) {
  States out;
  for (const Optimizer::Slot& slot : optimizer.slots()) {
    std::vector<State>& states = out[slot.slice.parameter];
    states.push_back({.slot = &slot, .part = slot.m});
    states.push_back({.slot = &slot, .part = slot.v});
    if (slot.master.present()) {
      states.push_back(
          {.slot = &slot, .part = slot.master, .home_only = false});
    }
  }
  return out;
}

// Whole rows of a parameter's states while they move. With expert replicas each
// has a stretch of the rows: the whole is put together, moved, and everyone
// takes its stretch back. Owns the copies.
class WholeRows {
 public:
  explicit WholeRows(Communicator* replicas) : replicas_(replicas) {}

  // The k-th state of a parameter; `own` is null where this rank has none of
  // it. Collective over the replicas, in one order.
  absl::StatusOr<Tensor> Assemble(const Parameter& parameter,
                                  const State* own) {
    const absl::Span<const int64_t> dims = parameter.value.dims();
    if (replicas_ == nullptr) {
      return Tensor(own->part.raw(), own->part.dtype(), dims);
    }
    Copy& copy = copies_.emplace_back();
    copy.values.assign(parameter.value.num_elements(), 0.0f);
    copy.own = own;
    if (own != nullptr) {
      std::copy_n(own->part.data<float>(), own->part.num_elements(),
                  copy.values.data() + own->slot->slice.begin);
    }
    // All but one of the summands of an element are zero.
    CADRE_RETURN_IF_ERROR(replicas_->AllReduceSum(absl::MakeSpan(copy.values)));
    return Tensor(copy.values.data(), DType::kF32, dims);
  }

  void PutBack() {
    for (const Copy& copy : copies_) {
      if (copy.own == nullptr) continue;
      std::copy_n(copy.values.data() + copy.own->slot->slice.begin,
                  copy.own->part.num_elements(), copy.own->part.data<float>());
    }
    copies_.clear();
  }

 private:
  struct Copy {
    std::vector<float> values;
    const State* own = nullptr;
  };
  Communicator* const replicas_;
  std::deque<Copy> copies_;
};

absl::Status MoveLayer(const Exec& exec, const MeshCommunicators& communicators,
                       Model* model, const States& states, int layer,
                       const ExpertPlacement& to) {
  WholeRows whole(communicators.group(MeshGroup::kExpertReplica));
  std::vector<ExpertTensor> tensors;
  for (const ExpertParameter& expert : model->expert_parameters()) {
    if (expert.layer != layer) continue;
    const Parameter& parameter = *expert.parameter;
    tensors.push_back({.layer = layer, .rows = parameter.value});
    if (!parameter.trainable) continue;
    const auto found = states.find(&parameter);
    // Values are f32 where they travel (parameter_lane.h): m and v, no master.
    const size_t count = found != states.end() ? found->second.size() : 2;
    for (size_t i = 0; i < count; ++i) {
      const State* own = found != states.end() ? &found->second[i] : nullptr;
      CADRE_ASSIGN_OR_RETURN(const Tensor rows, whole.Assemble(parameter, own));
      tensors.push_back({.layer = layer,
                         .rows = rows,
                         .home_only = own == nullptr || own->home_only});
    }
  }
  CADRE_RETURN_IF_ERROR(
      MoveExperts(exec, communicators.group(MeshGroup::kExpertParallel),
                  *model->expert_parallel(), to, tensors));
  whole.PutBack();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ReplaceExperts(const Exec& exec, Model* model,
                                       Optimizer* optimizer,
                                       const MeshCommunicators& communicators,
                                       const ExpertPlacement& to) {
  if (exec.backend != Backend::kCpu) {
    return absl::UnimplementedError(
        "moving experts between ranks runs on the CPU only; set moe.rebalance "
        "to off");
  }
  const ExpertParallel* const experts = model->expert_parallel();
  if (experts == nullptr || !(experts->placement.shape == to.shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expert placement ", to.plan_epoch, " of ", to.shape.num_layers,
        " layers, ", to.shape.num_experts, " experts, ", to.shape.num_ranks,
        " ranks and ", to.shape.slots_per_rank,
        " slots per rank does not fit the model"));
  }
  const ExpertSize size = SizeOfExpert(*model, *optimizer);
  CADRE_ASSIGN_OR_RETURN(
      const MovePlan plan,
      PlanMoves(experts->placement, to,
                {.weights = size.bytes, .state = size.state_bytes}));
  const States states = StatesOf(*optimizer);
  for (int layer = 0; layer < to.shape.num_layers; ++layer) {
    CADRE_RETURN_IF_ERROR(
        MoveLayer(exec, communicators, model, states, layer, to));
  }
  CADRE_RETURN_IF_ERROR(model->SetPlacement(to));
  return plan.max_rank_bytes;
}

ExpertSize SizeOfExpert(const Model& model, const Optimizer& optimizer) {
  ExpertSize size;
  // Expert layers are alike.
  for (const ExpertParameter& expert : model.expert_parameters()) {
    const Tensor& value = expert.parameter->value;
    if (expert.layer != 0 || value.dim(0) == 0) continue;
    size.bytes += value.num_bytes() / value.dim(0);
    if (!expert.parameter->trainable) continue;
    int64_t kept = 2;
    for (const Optimizer::Slot& slot : optimizer.slots()) {
      if (slot.master.present()) kept = 3;
    }
    size.state_bytes += kept * static_cast<int64_t>(sizeof(float)) *
                        value.num_elements() / value.dim(0);
  }
  return size;
}

}  // namespace cadre
