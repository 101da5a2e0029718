#include "worker/train/replace_experts.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "plan/replacement.h"
#include "worker/device/buffer.h"
#include "worker/device/transfer.h"
#include "worker/moe/expert_moves.h"

namespace cadre {
namespace {

// A tensor of the optimizer whose rows must follow the experts: all of it, or,
// where expert replicas share the work, this rank's stretch of it.
struct State {
  const Optimizer::Slot* slot = nullptr;
  Tensor part;
};
// The first states of a parameter, which the home of an expert alone has. A
// master after them is a value: every copy of the expert has it.
constexpr size_t kMoments = 2;

using States = std::map<const Parameter*, std::vector<State>>;

States StatesOf(const Optimizer& optimizer) {
  States out;
  for (const Optimizer::Slot& slot : optimizer.slots()) {
    std::vector<State>& states = out[slot.slice.parameter];
    states.push_back({.slot = &slot, .part = slot.m});
    states.push_back({.slot = &slot, .part = slot.v});
    if (slot.master.present()) {
      states.push_back({.slot = &slot, .part = slot.master});
    }
  }
  return out;
}

// Whole rows of a parameter's states while they move. With expert replicas each
// has a stretch of the rows: the whole is put together, moved, and everyone
// takes its stretch back. Owns the copies, which lie where exec computes.
class WholeRows {
 public:
  WholeRows(const Exec& exec, Communicator* replicas)
      : exec_(exec), replicas_(replicas) {}

  // The k-th state of a parameter; `own` is null where this rank has none of
  // it. Collective over the replicas, in one order.
  absl::StatusOr<Tensor> Assemble(const Parameter& parameter,
                                  const State* own) {
    const absl::Span<const int64_t> dims = parameter.value.dims();
    if (replicas_ == nullptr) {
      return Tensor(own->part.raw(), own->part.dtype(), dims);
    }
    const int64_t n = parameter.value.num_elements();
    CADRE_ASSIGN_OR_RETURN(
        Buffer memory, Buffer::Create(exec_, n * int64_t{sizeof(float)},
                                      "optimizer state of experts that move"));
    const Copy& copy = copies_.emplace_back(std::move(memory), own);
    if (own != nullptr) {
      CADRE_RETURN_IF_ERROR(CopyOnDevice(exec_, own->part, copy.Part()));
    }
    // All but one of the summands of an element are zero.
    CADRE_RETURN_IF_ERROR(replicas_->AllReduceSum(
        absl::MakeSpan(static_cast<float*>(copy.memory.data()), n)));
    return copy.memory.View(DType::kF32, dims);
  }

  absl::Status PutBack() {
    for (const Copy& copy : copies_) {
      if (copy.own == nullptr) continue;
      CADRE_RETURN_IF_ERROR(CopyOnDevice(exec_, copy.Part(), copy.own->part));
    }
    CADRE_RETURN_IF_ERROR(Synchronize(exec_));
    copies_.clear();
    return absl::OkStatus();
  }

 private:
  struct Copy {
    Buffer memory;
    const State* own = nullptr;
    // This rank's stretch.
    Tensor Part() const {
      return Tensor(static_cast<float*>(memory.data()) + own->slot->slice.begin,
                    DType::kF32, own->part.dims());
    }
  };
  const Exec& exec_;
  Communicator* const replicas_;
  std::deque<Copy> copies_;
};

absl::Status MoveLayer(const Exec& exec, const MeshCommunicators& communicators,
                       Model* model, const States& states, int layer,
                       const ExpertPlacement& to) {
  WholeRows whole(exec, communicators.group(MeshGroup::kExpertReplica));
  std::vector<ExpertTensor> tensors;
  for (const ExpertParameter& expert : model->expert_parameters()) {
    if (expert.layer != layer) continue;
    const Parameter& parameter = *expert.parameter;
    tensors.push_back({.layer = layer, .rows = parameter.value});
    if (!parameter.trainable) continue;
    const auto found = states.find(&parameter);
    // m and v, and a master of what is narrower (optimizer.h); the replicas
    // that own nothing of a parameter count alike.
    const size_t count = parameter.value.dtype() == DType::kBF16 ? 3 : 2;
    for (size_t i = 0; i < count; ++i) {
      const State* own = found != states.end() ? &found->second[i] : nullptr;
      CADRE_ASSIGN_OR_RETURN(const Tensor rows, whole.Assemble(parameter, own));
      tensors.push_back(
          {.layer = layer, .rows = rows, .home_only = i < kMoments});
    }
  }
  CADRE_RETURN_IF_ERROR(
      MoveExperts(exec, communicators.group(MeshGroup::kExpertParallel),
                  *model->expert_parallel(), to, tensors));
  return whole.PutBack();
}

}  // namespace

absl::StatusOr<int64_t> ReplaceExperts(const Exec& exec, Model* model,
                                       Optimizer* optimizer,
                                       const MeshCommunicators& communicators,
                                       const ExpertPlacement& to) {
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
