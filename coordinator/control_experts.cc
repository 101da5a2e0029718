// Control's part that decides where experts lie (expert_plan.h has the rules).

#include <prometheus/counter.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/metrics/names.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "coordinator/expert_plan.h"

namespace cadre::coordinator {
namespace {

std::map<std::string, std::string> Numbers(
    const ReplacementDecision& decision) {
  return {
      {"plan_epoch", absl::StrCat(decision.placement->plan_epoch)},
      {"balancedness_now", absl::StrFormat("%.4f", decision.balancedness_now)},
      {"balancedness_new", absl::StrFormat("%.4f", decision.balancedness_new)},
      {"saved_seconds", absl::StrFormat("%.3f", decision.saved_seconds)},
      {"move_seconds", absl::StrFormat("%.3f", decision.move_seconds)},
      {"moves", absl::StrCat(decision.moves.moves.size())},
      {"max_rank_bytes", absl::StrCat(decision.moves.max_rank_bytes)}};
}

}  // namespace

std::shared_ptr<const state::v1::ExpertPlacementState> Control::ExpertsOf(
    const std::string& id) const {
  absl::MutexLock lock(&workers_mutex_);
  const auto it = committed_experts_.find(id);
  return it == committed_experts_.end() ? nullptr : it->second;
}

absl::Status Control::PutExperts(Store& store, const std::string& id,
                                 state::v1::ExpertPlacementState state) {
  CADRE_RETURN_IF_ERROR(store.PutExperts(id, state));
  experts_[id] =
      std::make_shared<const state::v1::ExpertPlacementState>(std::move(state));
  experts_changed_ = true;
  return absl::OkStatus();
}

void Control::PublishExperts() {
  if (!std::exchange(experts_changed_, false)) return;
  absl::MutexLock lock(&workers_mutex_);
  committed_experts_ = experts_;
}

void Control::CountRebalance(const char* result) {
  options_.metrics->Counter(metric::kMoeRebalances, {{"result", result}})
      .Increment();
}

absl::Status Control::NotePlan(Store& store, const std::string& id,
                               const ReplacementDecision& decision,
                               const std::string& why) {
  const std::string message = absl::StrCat(
      "placement ", decision.placement->plan_epoch, ", ",
      decision.moves.moves.size(), " moves, ", why, decision.reason);
  CADRE_LOG(INFO) << "jobs/" << id << ": expert " << message;
  JobChange change{.record = *ledger_.Find(id)};
  change.AddEvent(v1::Event::SEVERITY_INFO, "EXPERT_REPLACEMENT_PLANNED",
                  message, Numbers(decision));
  return ledger_.Save(store, std::move(change));
}

void Control::TakeWindow(const RecordPtr& record,
                         const v1::ExpertLoads& loads) {
  if (stopped_ || record->job().plan().expert_parallel_size() <= 1) return;
  const std::string id = JobId(record->job().name());
  // Making a placement for many experts and ranks takes a while: not on the
  // writer's thread, unless the state has changed meanwhile.
  request_pool_->Add([this, record, id, loads] {
    const auto before = ExpertsOf(id);
    auto state = std::make_shared<state::v1::ExpertPlacementState>();
    if (before != nullptr) *state = *before;
    auto decision = std::make_shared<absl::StatusOr<ReplacementDecision>>(
        TakeLoads(record->job(), loads, state.get()));
    journal_->Submit({.decide = [this, record, id, loads, before, state,
                                 decision](Store& store) -> absl::Status {
      const RecordPtr now = ledger_.Find(id);
      if (now == nullptr ||
          now->job().attempt_epoch() != record->job().attempt_epoch()) {
        return absl::OkStatus();  // windows of an attempt that is over
      }
      const auto held = experts_.find(id);
      const auto present = held == experts_.end() ? nullptr : held->second;
      if (present != before) {
        state->Clear();
        if (present != nullptr) *state = *present;
        *decision = TakeLoads(now->job(), loads, state.get());
      }
      if (!decision->ok()) {
        if (!absl::IsUnavailable(decision->status())) {
          CADRE_LOG(WARNING) << "jobs/" << id << ": a window of expert "
                             << "loads: " << decision->status().message();
        }
        return absl::OkStatus();
      }
      CADRE_RETURN_IF_ERROR(PutExperts(store, id, *state));
      if (!(*decision)->adopt) {
        CountRebalance("skipped");
        return absl::OkStatus();
      }
      return NotePlan(store, id, **decision, "");
    }});
  });
}

absl::Status Control::TakeExpertsPlaced(Store& store,
                                        const v1::ExpertsPlaced& placed,
                                        JobChange* change) {
  const std::string id = change->id();
  state::v1::ExpertPlacementState state;
  const auto held = experts_.find(id);
  if (held != experts_.end()) state = *held->second;
  if (!TakePlaced(change->job(), placed, &state)) {
    CADRE_LOG(WARNING) << "jobs/" << id << ": expert placement "
                       << placed.plan_epoch() << " is in force, "
                       << "which was not ordered";
    return absl::OkStatus();
  }
  // With layers it is the one that a checkpoint brought: nothing has moved.
  if (!placed.has_placement()) CountRebalance("applied");
  change->AddEvent(
      v1::Event::SEVERITY_INFO, "EXPERTS_REBALANCED",
      absl::StrFormat("placement %d is in force after step %d, moved in %.3f s",
                      placed.plan_epoch(), placed.step(), placed.seconds()),
      {{"plan_epoch", absl::StrCat(placed.plan_epoch())},
       {"step", absl::StrCat(placed.step())},
       {"seconds", absl::StrFormat("%.6f", placed.seconds())},
       {"max_rank_bytes", absl::StrCat(placed.max_rank_bytes())}});
  return PutExperts(store, id, std::move(state));
}

void Control::FillPlacement(const state::v1::JobRecord& record,
                            const v1::SyncRequest& request,
                            v1::SyncResponse* reply) const {
  const auto state = ExpertsOf(JobId(record.job().name()));
  if (state == nullptr) return;
  v1::DesiredRun* const run = reply->mutable_run();
  if (run->has_assignment() && state->placement().layers_size() > 0) {
    v1::ExpertPlacement* const first =
        run->mutable_assignment()->mutable_placement();
    *first = state->placement();
    first->set_attempt_epoch(record.job().attempt_epoch());
  }
  const v1::ExpertPlacement* const next =
      OrderedPlacement(*state, record.job());
  if (next == nullptr || !request.has_running() ||
      request.running().prepared_plan_epoch() >= next->plan_epoch()) {
    return;
  }
  *reply->mutable_placement() = *next;
}

void Control::RebalanceExperts(const Caller& caller,
                               const v1::RebalanceExpertsRequest& request,
                               Done<v1::RebalanceExpertsResponse> done) {
  const std::string id = JobId(request.name());
  auto response = std::make_shared<v1::RebalanceExpertsResponse>();
  journal_->Submit(
      {.decide = [this, caller, request, id,
                  response](Store& store) -> absl::Status {
         const RecordPtr record = ledger_.Find(id);
         if (record == nullptr) return NoSuchJob(request.name());
         const v1::Job& job = record->job();
         CADRE_RETURN_IF_ERROR(CheckOwner(caller, job));
         CADRE_ASSIGN_OR_RETURN(const bool seen,
                                Seen(store, caller, "RebalanceExperts",
                                     request.request_id(), id, id));
         state::v1::ExpertPlacementState state;
         const auto held = experts_.find(id);
         if (held != experts_.end()) state = *held->second;
         if (seen) {
           const auto* const next = OrderedPlacement(state, job);
           response->set_ordered(next != nullptr);
           response->set_plan_epoch(next != nullptr
                                        ? next->plan_epoch()
                                        : state.placement().plan_epoch());
           response->set_decision(state.decision());
           return absl::OkStatus();
         }
         if (job.state() != v1::JOB_STATE_RUNNING) {
           return Error(absl::StatusCode::kFailedPrecondition, "JOB_STATE",
                        absl::StrCat(job.name(), " is ", StateName(job.state()),
                                     ": experts move while it trains only"));
         }
         CADRE_ASSIGN_OR_RETURN(const ReplacementDecision decision,
                                OrderReplacement(job, &state));
         response->set_ordered(decision.adopt);
         response->set_plan_epoch(decision.adopt
                                      ? state.next().plan_epoch()
                                      : state.placement().plan_epoch());
         response->set_balancedness_now(decision.balancedness_now);
         response->set_balancedness_new(decision.balancedness_new);
         response->set_moves(static_cast<int64_t>(decision.moves.moves.size()));
         response->set_max_rank_bytes(decision.moves.max_rank_bytes);
         response->set_decision(decision.reason);
         CADRE_RETURN_IF_ERROR(
             Audit(store, caller, "RebalanceExperts", job.name()));
         CADRE_RETURN_IF_ERROR(PutExperts(store, id, std::move(state)));
         if (!decision.adopt) {
           CountRebalance("skipped");
           return absl::OkStatus();
         }
         return NotePlan(store, id, decision,
                         absl::StrCat("by ", caller.principal, ": "));
       },
       .done =
           [this, caller, response, done](const absl::Status& status) {
             if (absl::IsPermissionDenied(status)) {
               AuditDenial(caller, "RebalanceExperts", ErrorReason(status));
             }
             if (!status.ok()) return done(status);
             done(*response);
           }});
}

}  // namespace cadre::coordinator
