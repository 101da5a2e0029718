#include "worker/model/expert_connection.h"

#include <iterator>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/side_stream.h"
#include "worker/moe/link_tiers.h"

namespace cadre {

absl::Status CheckExpertParallel(const ModelSpec& spec,
                                 const ModelOptions& options) {
  if (!options.expert_parallel) return absl::OkStatus();
  const PlacementShape& shape = options.expert_parallel->placement.shape;
  int64_t layers = 0;
  for (const BlockSpec& block : spec.blocks) {
    const auto* moe = std::get_if<MoeSpec>(&block.ffn);
    if (moe == nullptr) continue;
    ++layers;
    if (moe->num_experts != shape.num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("a layer of the model has ", moe->num_experts,
                       " experts, their placement is for ", shape.num_experts));
    }
  }
  if (layers == shape.num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has ", layers, " MoE layers, the placement of ",
                   "its experts ", shape.num_layers));
}

absl::StatusOr<std::unique_ptr<ExpertRuntime>> ConnectExperts(
    const ModelOptions& options, const ModelGroups& groups) {
  const int size =
      options.expert_parallel ? options.expert_parallel->size() : 1;
  Communicator* const ep = groups.expert_dispatch;
  if ((ep == nullptr) != (size == 1) ||
      (ep != nullptr &&
       (ep->size() != size || ep->rank() != options.expert_parallel->rank))) {
    return absl::InternalError(
        absl::StrCat("the model's experts lie on ", size,
                     " ranks, the communicator of their dispatch has ",
                     ep == nullptr ? 1 : ep->size(), " and is rank ",
                     ep == nullptr ? 0 : ep->rank()));
  }
  std::vector<LinkTier> tiers = groups.expert_tiers;
  if (tiers.empty()) {
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    tiers = LinkTiers({}, ranks, ep == nullptr ? 0 : ep->rank());
  }
  if (std::ssize(tiers) != size) {
    return absl::InternalError(
        absl::StrCat("the model's experts lie on ", size, " ranks, and of ",
                     tiers.size(), " it is said how far away they are"));
  }
  if (!options.expert_parallel) return nullptr;
  auto runtime = std::make_unique<ExpertRuntime>(
      *options.expert_parallel, ep, std::move(tiers), options.dispatch_chunks,
      options.overlap_dispatch);
  CADRE_ASSIGN_OR_RETURN(runtime->side, SideStream::Create(options.exec));
  if (runtime->side != nullptr && ep != nullptr) {
    ep->OrderBehind(runtime->side->stream());
  }
  return runtime;
}

}  // namespace cadre
