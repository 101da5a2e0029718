// Control's part that keeps house: what is past its time goes, workers that
// fail too often are set aside, denials are noted.

#include <prometheus/gauge.h>

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/backup.h"
#include "coordinator/control.h"
#include "coordinator/page.h"
#include "plan/path_roots.h"

namespace cadre::coordinator {
namespace {

constexpr absl::Duration kHouseKeeping = absl::Hours(1);
// While something is left to do.
constexpr absl::Duration kNextPart = absl::Seconds(5);
constexpr size_t kJobsPerPart = 100;
constexpr absl::Duration kKeepRequests = absl::Hours(24 * 7);
constexpr absl::Duration kBlameWindow = absl::Hours(1);
constexpr int64_t kDenialsPerSecond = 10;

absl::StatusOr<v1::ListAuditRecordsResponse> ReadAuditPage(
    Store& store, const v1::ListAuditRecordsRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
  int64_t below = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(const std::string position,
                           ReadPageToken(request.page_token(), "audit"));
    if (!absl::SimpleAtoi(position, &below)) {
      return ReadPageToken("", "audit").status();
    }
  }
  CADRE_ASSIGN_OR_RETURN(const std::vector<AuditRow> rows,
                         store.ReadAudit(below, size + 1));
  v1::ListAuditRecordsResponse response;
  for (const AuditRow& row : rows) {
    if (response.records_size() == size) {
      response.set_next_page_token(MakePageToken(
          absl::StrCat(response.records(size - 1).sequence()), "audit"));
      break;
    }
    v1::AuditRecord* record = response.add_records();
    record->set_sequence(row.sequence);
    *record->mutable_time() = ToProto(absl::FromUnixNanos(row.time_ns));
    record->set_principal(row.principal);
    record->set_peer(row.peer);
    record->set_method(row.method);
    record->set_target(row.target);
    record->set_outcome(row.outcome);
  }
  return response;
}

}  // namespace

absl::Status Control::HouseKeep(Store& store) {
  const absl::Duration monotonic = options_.clock->Monotonic();
  if (monotonic < next_house_keeping_) return absl::OkStatus();
  next_house_keeping_ = monotonic + kHouseKeeping;
  const absl::Time now = options_.clock->Now();
  const auto& keep = options_.retention;
  std::vector<std::pair<absl::Time, std::string>> ended;
  for (const auto& [id, record] : ledger_.jobs()) {
    if (IsTerminal(record->job().state())) {
      ended.emplace_back(FromProto(record->job().end_time()), id);
    }
    CADRE_RETURN_IF_ERROR(store.TrimEvents(id, keep.events));
  }
  std::sort(ended.begin(), ended.end());
  std::vector<std::string> gone;
  for (size_t i = 0; i < ended.size() && gone.size() < kJobsPerPart; ++i) {
    const bool many = static_cast<int64_t>(ended.size() - i) > keep.jobs;
    if (!many && now - ended[i].first < keep.jobs_for) break;
    const RecordPtr record = ledger_.Find(ended[i].second);
    // Files that another job starts from stay, and their job with them.
    if (keep.purge_artifacts && !UserOf(*record).empty()) continue;
    gone.push_back(ended[i].second);
    CADRE_RETURN_IF_ERROR(Forget(store, record, keep.purge_artifacts));
  }
  if (gone.size() == kJobsPerPart) next_house_keeping_ = monotonic + kNextPart;
  CADRE_RETURN_IF_ERROR(
      store.TrimRequests(absl::ToUnixSeconds(now - kKeepRequests)));
  CADRE_RETURN_IF_ERROR(
      store.TrimAudit(absl::ToUnixNanos(now - keep.audit_for)));
  const auto ended_job = [this](const auto& entry) {
    return !ledger_.live().contains(entry.first);
  };
  std::erase_if(reason_written_, ended_job);
  std::unordered_set<int64_t> live;
  for (const auto& [id, record] : ledger_.live()) {
    live.insert(record->create_sequence());
  }
  std::erase_if(since_, [&live](const auto& entry) {
    return !live.contains(entry.first);
  });
  std::erase_if(retry_at_, ended_job);
  if (std::erase_if(experts_, [this](const auto& entry) {
        return !ledger_.jobs().contains(entry.first);
      }) > 0) {
    experts_changed_ = true;
  }
  if (!gone.empty()) {
    CADRE_LOG(INFO) << "retention: " << gone.size() << " ended jobs forgotten";
    request_pool_->Add([this, gone] {
      for (const std::string& id : gone) options_.series->Forget(id);
    });
  }
  return absl::OkStatus();
}

absl::Status Control::Blame(Store& store, const state::v1::JobRecord& record,
                            const Verdict& verdict) {
  if (verdict.trigger != Trigger::kAttemptFailed || verdict.rank < 0 ||
      options_.cordon_after_failures < 1 ||
      BudgetKey(verdict.cause) != "WORKER_LOST") {
    return absl::OkStatus();
  }
  const absl::Duration now = options_.clock->Monotonic();
  const std::string& id = record.members(verdict.rank).worker_id();
  std::vector<absl::Duration>& times = blamed_[id];
  std::erase_if(
      times, [now](absl::Duration time) { return now - time > kBlameWindow; });
  times.push_back(now);
  const auto row = worker_rows_.find(id);
  if (static_cast<int>(times.size()) < options_.cordon_after_failures ||
      row == worker_rows_.end() ||
      row->second.admin_state != v1::Worker::ADMIN_STATE_SCHEDULABLE) {
    return absl::OkStatus();
  }
  WorkerRow cordoned = row->second;
  cordoned.admin_state = v1::Worker::ADMIN_STATE_CORDONED;
  cordoned.reason = absl::StrCat(
      times.size(), " failures within an hour, the last: ", verdict.detail,
      "; 'cadre uncordon' gives it work again");
  times.clear();
  CADRE_LOG(WARNING) << "workers/" << id << ": cordoned: " << cordoned.reason;
  CADRE_RETURN_IF_ERROR(Audit(store, {.principal = "coordinator"}, "Cordon",
                              absl::StrCat("workers/", id)));
  return PutWorker(store, cordoned);
}

void Control::AuditDenial(const Caller& caller, const std::string& method,
                          const std::string& reason) {
  const int64_t second =
      absl::ToInt64Seconds(options_.clock->Monotonic() - started_);
  if (denial_second_.exchange(second) != second) denials_this_second_ = 0;
  if (denials_this_second_.fetch_add(1) >= kDenialsPerSecond) return;
  const AuditRow row{.time_ns = absl::ToUnixNanos(options_.clock->Now()),
                     .principal = caller.principal,
                     .peer = caller.peer,
                     .method = method,
                     .outcome = reason};
  journal_->Submit(
      {.decide = [row](Store& store) { return store.AppendAudit(row); }});
}

void Control::ListAudit(const v1::ListAuditRecordsRequest& request,
                        Done<v1::ListAuditRecordsResponse> done) {
  request_pool_->Add(
      [this, request, done] {
        auto reader = journal_->OpenReader();
        if (!reader.ok()) return done(reader.status());
        Store store(&*reader);
        done(ReadAuditPage(store, request));
      },
      [done] { done(ShuttingDown()); });
}

void Control::Backup(const Caller& caller,
                     const v1::BackupStateRequest& request,
                     Done<v1::BackupStateResponse> done) {
  if (!request.path().empty()) {
    std::vector<std::string> roots = options_.allowed_roots;
    roots.push_back(options_.backup_dir);
    const absl::Status inside = CheckInside(request.path(), roots);
    if (!inside.ok()) return done(inside);
  }
  const auto make = [this, request, done] {
    const auto info = request.path().empty()
                          ? BackUpInto(options_.state_dir, options_.backup_dir,
                                       options_.backup_keep)
                          : BackUp(options_.state_dir, request.path());
    if (!info.ok()) return done(info.status());
    options_.metrics->Gauge(metric::kJournalLastBackup)
        .Set(absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch()));
    v1::BackupStateResponse response;
    response.set_path(info->path);
    response.set_bytes(info->bytes);
    response.set_generation(info->generation);
    done(std::move(response));
  };
  // First the record of who asked, then the copy, which has it.
  journal_->Submit({.decide =
                        [this, caller](Store& store) {
                          return Audit(store, caller, "BackupState", "");
                        },
                    .done =
                        [this, make, done](const absl::Status& status) {
                          if (!status.ok()) return done(status);
                          request_pool_->Add(make,
                                             [done] { done(ShuttingDown()); });
                        }});
}

void Control::BackUpIfDue() {
  const absl::Duration now = options_.clock->Monotonic();
  if (options_.backup_every <= absl::ZeroDuration() || now < next_backup_) {
    return;
  }
  next_backup_ = now + options_.backup_every;
  request_pool_->Add([this] {
    const auto info = BackUpInto(options_.state_dir, options_.backup_dir,
                                 options_.backup_keep);
    if (!info.ok()) {
      CADRE_LOG(ERROR) << "backup: " << info.status().ToString();
      return;
    }
    options_.metrics->Gauge(metric::kJournalLastBackup)
        .Set(absl::ToDoubleSeconds(options_.clock->Now() - absl::UnixEpoch()));
  });
}

}  // namespace cadre::coordinator
