// Control's part that gives workers to jobs and looks at leases.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "coordinator/attempt_change.h"
#include "coordinator/control.h"
#include "coordinator/scheduler.h"
#include "coordinator/scheduler_input.h"

namespace cadre::coordinator {
namespace {

// The numbers of an unchanged reason are written down this often.
constexpr absl::Duration kReasonInterval = absl::Seconds(5);

}  // namespace

absl::Duration Control::Waited(const state::v1::JobRecord& record) {
  const absl::Duration in_state = InState(record);
  if (record.job().state() != v1::JOB_STATE_QUEUED) return in_state;
  // By the calendar, so that a restart does not send it to the back; a jump of
  // the clock moves all jobs alike.
  return std::max(in_state,
                  options_.clock->Now() - FromProto(record.job().queue_time()));
}

absl::Status Control::Place(Store& store) {
  const absl::Duration now = options_.clock->Monotonic();
  SchedulerInput input{.quota = options_.quota,
                       .warming_up = WarmingUp(),
                       .disk_full = journal_->disk_full(),
                       .preemption = options_.preemption};
  std::set<std::string> held;
  std::vector<std::pair<QueueRank, RecordPtr>> queue;
  for (const auto& [id, record] : ledger_.live()) {
    const v1::JobState state = record->job().state();
    if (state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_RECOVERING) {
      queue.emplace_back(
          RankInQueue(state == v1::JOB_STATE_RECOVERING,
                      record->job().priority(), Waited(*record),
                      record->requeued(), record->create_sequence()),
          record);
    } else if (IsActive(state)) {
      input.holding.push_back(ToHolding(*record));
      for (const auto& member : record->members()) {
        held.insert(member.worker_id());
      }
    }
  }
  // A long queue is looked at from the front, so that its length costs little.
  const auto front =
      static_cast<int64_t>(std::min(queue.size(), kMaxCandidates));
  std::partial_sort(queue.begin(), queue.begin() + front, queue.end());
  std::vector<WaitReason> behind;
  for (size_t i = 0; i < queue.size(); ++i) {
    const state::v1::JobRecord& record = *queue[i].second;
    if (i >= kMaxCandidates) {
      // Unless it was told so before; some at a time, since each is written
      // down.
      if (record.job().queue_reason().code() != "WAITING_FOR_WORKERS" &&
          behind.size() < kMaxCandidates) {
        behind.push_back(FarBehind(JobId(record.job().name())));
      }
      continue;
    }
    WaitingJob& job = input.waiting.emplace_back(ToWaiting(record));
    job.waited = Waited(record);
    if (job.waited < options_.shrink_after) job.smaller.clear();
    const auto retry = retry_at_.find(job.id);
    if (retry != retry_at_.end()) job.backoff_left = retry->second - now;
  }
  if (input.waiting.empty()) return absl::OkStatus();
  input.workers = MakeSlots(registry_, now, worker_rows_, held);
  const SchedulerPass pass = Schedule(std::move(input));
  for (const Placement& placement : pass.placements) {
    std::vector<state::v1::Member> members;
    for (const std::string& worker : placement.workers) {
      const WorkerView view = *registry_.Find(worker, now);
      auto& member = members.emplace_back();
      member.set_worker_id(worker);
      member.set_incarnation(view.incarnation);
      member.set_link_domain(LinkDomainOf(view.last.device()));
    }
    JobChange change{.record = *ledger_.Find(placement.job)};
    CADRE_RETURN_IF_ERROR(
        StartAttempt(ledger_, options_.clock->Now(), members, &change));
    CADRE_LOG(INFO) << "jobs/" << placement.job << ": attempt "
                    << change.job().attempt_epoch() << " on " << members.size()
                    << " workers";
    retry_at_.erase(placement.job);
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  }
  for (const std::string& victim : pass.preempt) {
    JobChange change{.record = *ledger_.Find(victim)};
    CADRE_RETURN_IF_ERROR(
        ledger_.Apply(Trigger::kPreempt,
                      "a job of higher priority needs its workers", &change));
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  }
  CADRE_RETURN_IF_ERROR(ExplainWaits(store, behind));
  return ExplainWaits(store, pass.reasons);
}

absl::Status Control::ExplainWaits(Store& store,
                                   const std::vector<WaitReason>& reasons) {
  const absl::Duration now = options_.clock->Monotonic();
  for (const WaitReason& reason : reasons) {
    const RecordPtr record = ledger_.Find(reason.job);
    const v1::QueueReason& present = record->job().queue_reason();
    const bool new_code = present.code() != reason.code;
    // Neither a countdown nor every change of a number is worth a row.
    absl::Duration& written = reason_written_[reason.job];
    if (!new_code && (reason.code == "RETRY_BACKOFF" ||
                      present.message() == reason.message ||
                      now - written < kReasonInterval)) {
      continue;
    }
    written = now;
    JobChange change{.record = *record};
    v1::QueueReason* queue_reason = change.job().mutable_queue_reason();
    queue_reason->set_code(reason.code);
    queue_reason->set_message(reason.message);
    if (new_code) {
      *queue_reason->mutable_since() = ToProto(options_.clock->Now());
      change.AddEvent(v1::Event::SEVERITY_INFO, "QUEUE_REASON_CHANGED",
                      reason.message, {{"code", reason.code}});
    }
    CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
  }
  return absl::OkStatus();
}

absl::Status Control::NoteExpiredLeases(Store& store) {
  const absl::Duration now = options_.clock->Monotonic();
  for (const std::string& worker : registry_.TakeExpired(now)) {
    options_.metrics
        ->Counter(metric::kLeaseExpirations, {{"verdict", "unreachable"}})
        .Increment();
    for (const auto& [id, record] : ledger_.live()) {
      if (!IsActive(record->job().state())) continue;
      const auto& members = record->members();
      const auto member =
          std::find_if(members.begin(), members.end(),
                       [&](const auto& m) { return m.worker_id() == worker; });
      if (member == members.end()) continue;
      JobChange change{.record = *record};
      change.AddEvent(
          v1::Event::SEVERITY_WARN, "WORKER_UNREACHABLE",
          absl::StrCat("worker ", worker, " (rank ", member - members.begin(),
                       ") has not called for ",
                       absl::FormatDuration(options_.timeouts.lease_ttl)),
          {{"worker", worker}});
      CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
      break;  // the map has changed; a worker is in one gang only
    }
  }
  std::map<std::pair<v1::Worker::State, v1::Worker::AdminState>, int> counts;
  registry_.ForEach(now, [&](const WorkerView& view, bool lease_live) {
    const v1::Worker::State state =
        lease_live ? ReportedState(view.last) : v1::Worker::STATE_UNREACHABLE;
    const auto row = worker_rows_.find(view.id);
    auto admin = v1::Worker::ADMIN_STATE_SCHEDULABLE;
    if (row != worker_rows_.end()) {
      admin = static_cast<v1::Worker::AdminState>(row->second.admin_state);
    }
    if (view.last.draining()) admin = v1::Worker::ADMIN_STATE_DRAINING;
    ++counts[{state, admin}];
  });
  for (int number = v1::Worker::STATE_IDLE;
       number <= v1::Worker::STATE_UNREACHABLE; ++number) {
    const auto state = static_cast<v1::Worker::State>(number);
    for (const auto admin :
         {v1::Worker::ADMIN_STATE_SCHEDULABLE, v1::Worker::ADMIN_STATE_CORDONED,
          v1::Worker::ADMIN_STATE_DRAINING}) {
      options_.metrics
          ->Gauge(
              metric::kWorkers,
              {{"state", v1::Worker::State_Name(state).substr(6)},
               {"admin_state", v1::Worker::AdminState_Name(admin).substr(12)}})
          .Set(counts[{state, admin}]);
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre::coordinator
