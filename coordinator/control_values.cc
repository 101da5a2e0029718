// Control's part that reads values over steps.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "coordinator/expert_plan.h"

namespace cadre::coordinator {
namespace {

struct MeanAndMost {
  double mean = 0, most = 0;
};

template <typename Counts>
MeanAndMost Sum(const Counts& counts) {
  MeanAndMost out;
  for (const int64_t count : counts) {
    out.mean += static_cast<double>(count) / static_cast<double>(counts.size());
    out.most = std::max(out.most, static_cast<double>(count));
  }
  return out;
}

absl::StatusOr<v1::GetExpertLoadsResponse> ShowLoads(
    const v1::GetExpertLoadsRequest& request,
    const std::optional<v1::ExpertLoads>& loads,
    const state::v1::ExpertPlacementState* experts) {
  if (!loads.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_EXPERTS",
                 absl::StrCat(request.job(),
                              " has reported no tokens per expert: its model "
                              "is dense, or it has not trained a step yet"));
  }
  v1::GetExpertLoadsResponse response;
  response.set_first_step(loads->first_step());
  response.set_last_step(loads->last_step());
  response.set_slots_per_rank(loads->slots_per_rank());
  if (experts != nullptr) {
    response.set_plan_epoch(experts->placement().plan_epoch());
    response.set_replacements(experts->replacements());
    response.set_decision(experts->decision());
  }
  double rank_mean = 0, rank_most = 0;
  int moe_layer = -1;
  const auto& wanted = request.layers();
  for (const auto& layer : loads->layers()) {
    ++moe_layer;
    response.set_num_experts(
        std::max(response.num_experts(), layer.tokens_size()));
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(),
                                     layer.index()) == wanted.end()) {
      continue;
    }
    auto* out = response.add_layers();
    out->set_index(layer.index());
    *out->mutable_tokens() = layer.tokens();
    *out->mutable_rank_tokens() = layer.rank_tokens();
    out->set_dropped(layer.dropped());
    out->set_remapped(layer.remapped());
    out->set_padding_rows(layer.padding_rows());
    const MeanAndMost experts_load = Sum(layer.tokens());
    if (experts_load.most > 0) {
      out->set_balancedness(experts_load.mean / experts_load.most);
    }
    const MeanAndMost ranks_load = Sum(layer.rank_tokens());
    if (ranks_load.most > 0) {
      out->set_rank_balancedness(ranks_load.mean / ranks_load.most);
    }
    rank_mean += ranks_load.mean;
    rank_most += ranks_load.most;
    if (experts != nullptr && moe_layer < experts->placement().layers_size()) {
      *out->mutable_slot_to_expert() =
          experts->placement().layers(moe_layer).slot_to_expert();
    }
  }
  if (rank_most > 0) response.set_rank_balancedness(rank_mean / rank_most);
  return response;
}

}  // namespace

void Control::GetMetrics(const v1::GetMetricsRequest& request,
                         Done<v1::GetMetricsResponse> done) {
  const std::string id = JobId(request.name());
  if (table_.Find(id) == nullptr) return done(NoSuchJob(request.name()));
  request_pool_->Add(
      [this, id, request, done] { done(options_.series->Read(id, request)); },
      [done] { done(ShuttingDown()); });
}

void Control::GetExpertLoads(const v1::GetExpertLoadsRequest& request,
                             Done<v1::GetExpertLoadsResponse> done) {
  const std::string id = JobId(request.job());
  const RecordPtr record = table_.Find(id);
  if (record == nullptr) return done(NoSuchJob(request.job()));
  request_pool_->Add(
      [this, id, record, request, done] {
        const bool cumulative =
            request.window() == v1::GetExpertLoadsRequest::WINDOW_CUMULATIVE;
        const auto loads = options_.series->Loads(id, cumulative);
        if (!loads.ok()) return done(loads.status());
        const auto experts = ExpertsOf(id);
        auto response = ShowLoads(request, *loads, experts.get());
        if (response.ok() && experts != nullptr) {
          const auto* const next = OrderedPlacement(*experts, record->job());
          if (next != nullptr && record->job().state() == v1::JOB_STATE_RUNNING)
            response->set_next_plan_epoch(next->plan_epoch());
        }
        done(std::move(response));
      },
      [done] { done(ShuttingDown()); });
}

}  // namespace cadre::coordinator
