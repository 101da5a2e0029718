// Control's part that shows workers to operators and takes their orders.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "coordinator/filter.h"
#include "coordinator/page.h"

namespace cadre::coordinator {
namespace {

constexpr size_t kMaxReason = 1024;
constexpr absl::string_view kWorkers = "workers/";

std::string WorkerId(const std::string& name) {
  return absl::StartsWith(name, kWorkers) ? name.substr(kWorkers.size()) : "";
}

absl::Status NoSuchWorker(const std::string& name) {
  return NotFound("WORKER_NOT_FOUND", "cadre.v1.Worker", name,
                  absl::StrCat("there is no worker '", name,
                               "'; 'cadre workers' shows "
                               "all"));
}

const Filter::Fields& WorkerFields() {
  static const auto* const kFields = new Filter::Fields{
      .text = {"state", "admin_state", "job", "backend", "hostname", "label."},
      .all = "state, admin_state, job, backend, hostname, label.KEY"};
  return *kFields;
}

std::string Text(const v1::Worker& worker, const std::string& field) {
  if (field == "state") {
    return v1::Worker::State_Name(worker.state()).substr(6);
  }
  if (field == "admin_state") {
    return v1::Worker::AdminState_Name(worker.admin_state()).substr(12);
  }
  if (field == "job") return JobId(worker.job());
  if (field == "backend") return worker.device().backend();
  if (field == "hostname") return worker.device().hostname();
  const auto& labels = worker.device().labels();
  const auto it = labels.find(field.substr(sizeof("label.") - 1));
  return it == labels.end() ? "" : it->second;
}

}  // namespace

absl::Status Control::PutWorker(Store& store, const WorkerRow& row) {
  CADRE_RETURN_IF_ERROR(store.PutWorker(row));
  worker_rows_[row.id] = row;
  workers_changed_ = true;
  return absl::OkStatus();
}

void Control::PublishWorkers() {
  if (!std::exchange(workers_changed_, false)) return;
  absl::MutexLock lock(&workers_mutex_);
  committed_workers_ = worker_rows_;
}

v1::Worker Control::Show(const WorkerRow* row, const WorkerView* view) const {
  v1::Worker worker;
  worker.set_name(absl::StrCat(kWorkers, view != nullptr ? view->id : row->id));
  worker.set_state(v1::Worker::STATE_LOST);
  worker.set_admin_state(v1::Worker::ADMIN_STATE_SCHEDULABLE);
  worker.set_rank(-1);
  if (row != nullptr && row->admin_state != 0) {
    worker.set_admin_state(
        static_cast<v1::Worker::AdminState>(row->admin_state));
    worker.set_reason(row->reason);
  }
  if (view == nullptr) return worker;
  worker.set_incarnation(view->incarnation);
  worker.set_state(view->lease_live ? ReportedState(view->last)
                                    : v1::Worker::STATE_UNREACHABLE);
  if (view->last.draining()) {
    worker.set_admin_state(v1::Worker::ADMIN_STATE_DRAINING);
    worker.set_reason("the worker is shutting down");
  }
  *worker.mutable_device() = view->last.device();
  if (const RecordPtr record = table_.HeldBy(view->id)) {
    for (int rank = 0; rank < record->members_size(); ++rank) {
      if (record->members(rank).worker_id() != view->id ||
          record->members(rank).incarnation() != view->incarnation) {
        continue;
      }
      worker.set_job(record->job().name());
      worker.set_rank(rank);
    }
  }
  *worker.mutable_last_sync_time() = ToProto(view->last_sync_time);
  worker.set_build(view->last.build());
  return worker;
}

absl::StatusOr<v1::ListWorkersResponse> Control::ListWorkers(
    const v1::ListWorkersRequest& request) const {
  CADRE_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
  CADRE_ASSIGN_OR_RETURN(const Filter filter,
                         Filter::Parse(request.filter(), WorkerFields()));
  const std::string query = absl::StrCat("workers ", request.filter());
  std::string after;
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(after, ReadPageToken(request.page_token(), query));
  }
  const auto views = registry_.All(options_.clock->Monotonic());
  std::map<std::string, std::pair<const WorkerRow*, const WorkerView*>> all;
  absl::MutexLock lock(&workers_mutex_);
  for (const auto& [id, row] : committed_workers_) {
    // Those that an operator has spoken of stay in sight while they are away.
    if (row.admin_state > v1::Worker::ADMIN_STATE_SCHEDULABLE) {
      all[id].first = &row;
    }
  }
  for (const WorkerView& view : views) {
    const auto row = committed_workers_.find(view.id);
    all[view.id] = {row == committed_workers_.end() ? nullptr : &row->second,
                    &view};
  }
  v1::ListWorkersResponse response;
  for (auto it = all.upper_bound(after); it != all.end(); ++it) {
    const v1::Worker worker = Show(it->second.first, it->second.second);
    if (!filter.Matches(
            [&worker](const std::string& field) { return Text(worker, field); },
            [](const std::string&) { return int64_t{0}; })) {
      continue;
    }
    if (response.workers_size() == size) {
      response.set_next_page_token(
          MakePageToken(WorkerId(response.workers(size - 1).name()), query));
      break;
    }
    *response.add_workers() = worker;
  }
  return response;
}

void Control::ChangeWorker(const Caller& caller, const WorkerVerb& verb,
                           Done<v1::Worker> done) {
  const std::string id = WorkerId(verb.name);
  journal_->Submit(
      {.decide = [this, caller, verb, id](Store& store) -> absl::Status {
         const auto known = worker_rows_.find(id);
         if (known == worker_rows_.end()) return NoSuchWorker(verb.name);
         CADRE_ASSIGN_OR_RETURN(
             const bool seen, Seen(store, caller, verb.method, verb.request_id,
                                   absl::StrCat(id, "\n", verb.to, "\n",
                                                verb.mode, "\n", verb.reason),
                                   id));
         if (seen) return absl::OkStatus();
         WorkerRow row = known->second;
         row.admin_state = verb.to;
         row.reason = verb.to == v1::Worker::ADMIN_STATE_SCHEDULABLE
                          ? ""
                          : verb.reason.substr(0, kMaxReason);
         row.drain_mode = verb.mode;
         row.drain_since = row.drain_until = 0;
         if (verb.to == v1::Worker::ADMIN_STATE_DRAINING) {
           const absl::Time now = options_.clock->Now();
           row.drain_since = absl::ToUnixNanos(now);
           row.drain_until = absl::ToUnixNanos(
               now + (verb.deadline > absl::ZeroDuration()
                          ? verb.deadline
                          : options_.timeouts.drain_deadline));
         }
         CADRE_LOG(INFO) << verb.name << ": " << verb.method << " by "
                         << caller.principal << " " << row.reason;
         CADRE_RETURN_IF_ERROR(Audit(store, caller, verb.method, verb.name));
         CADRE_RETURN_IF_ERROR(PutWorker(store, row));
         for (const auto& [job, record] : ledger_.live()) {
           for (const auto& member : record->members()) {
             if (member.worker_id() == id) return Evaluate(store, job);
           }
         }
         return absl::OkStatus();
       },
       .done =
           [this, id, done](const absl::Status& status) {
             if (!status.ok()) return done(status);
             const auto view = registry_.Find(id, options_.clock->Monotonic());
             absl::MutexLock lock(&workers_mutex_);
             const auto row = committed_workers_.find(id);
             done(Show(row == committed_workers_.end() ? nullptr : &row->second,
                       view.has_value() ? &*view : nullptr));
           }});
}

std::string Control::MustLeave(const state::v1::JobRecord& record,
                               const GangView& gang) const {
  const int64_t now = absl::ToUnixNanos(options_.clock->Now());
  for (int rank = 0; rank < record.members_size(); ++rank) {
    const std::string& id = record.members(rank).worker_id();
    if (gang.ranks[rank].known && gang.ranks[rank].last.draining()) {
      return absl::StrCat("worker ", id, " is shutting down");
    }
    const auto row = worker_rows_.find(id);
    if (row == worker_rows_.end() ||
        row->second.admin_state != v1::Worker::ADMIN_STATE_DRAINING) {
      continue;
    }
    const std::string why = absl::StrCat("worker ", id, " is being drained",
                                         row->second.reason.empty() ? "" : ": ",
                                         row->second.reason);
    if (row->second.drain_mode != v1::DrainRequest::MODE_AT_CHECKPOINT ||
        now >= row->second.drain_until ||
        absl::ToUnixNanos(
            FromProto(record.job().latest_checkpoint().create_time())) >=
            row->second.drain_since) {
      return why;
    }
  }
  return "";
}

}  // namespace cadre::coordinator
