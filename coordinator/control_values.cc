// Control's part that reads values over steps.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"

namespace cadre::coordinator {
namespace {

absl::StatusOr<v1::GetExpertLoadsResponse> ShowLoads(
    const v1::GetExpertLoadsRequest& request,
    const std::optional<v1::ExpertLoads>& loads) {
  if (!loads.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NO_EXPERTS",
                 absl::StrCat(request.job(),
                              " has reported no tokens per expert: its model "
                              "is dense, or it has not trained a step yet"));
  }
  v1::GetExpertLoadsResponse response;
  response.set_first_step(loads->first_step());
  response.set_last_step(loads->last_step());
  const auto& wanted = request.layers();
  for (const auto& layer : loads->layers()) {
    response.set_num_experts(
        std::max(response.num_experts(), layer.tokens_size()));
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(),
                                     layer.index()) == wanted.end()) {
      continue;
    }
    auto* out = response.add_layers();
    out->set_index(layer.index());
    *out->mutable_tokens() = layer.tokens();
    int64_t sum = 0, most = 0;
    for (const int64_t tokens : layer.tokens()) {
      sum += tokens;
      most = std::max(most, tokens);
    }
    if (most > 0) {
      out->set_balancedness(static_cast<double>(sum) /
                            static_cast<double>(layer.tokens_size()) /
                            static_cast<double>(most));
    }
  }
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
  if (table_.Find(id) == nullptr) return done(NoSuchJob(request.job()));
  request_pool_->Add(
      [this, id, request, done] {
        auto loads = options_.series->Loads(
            id,
            request.window() == v1::GetExpertLoadsRequest::WINDOW_CUMULATIVE);
        done(loads.ok()
                 ? ShowLoads(request, *loads)
                 : absl::StatusOr<v1::GetExpertLoadsResponse>(loads.status()));
      },
      [done] { done(ShuttingDown()); });
}

}  // namespace cadre::coordinator
