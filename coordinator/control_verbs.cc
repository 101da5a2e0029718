// Control's part that changes jobs at a user's word.

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"

namespace cadre::coordinator {
namespace {

constexpr size_t kMaxReason = 1024;

std::string Sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

absl::Status CheckEtag(const std::string& etag, const v1::Job& job) {
  if (etag.empty() || etag == job.etag()) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, "ETAG_MISMATCH",
               "the job has changed since it was read; read it again",
               {{"etag", job.etag()}});
}

}  // namespace

absl::Status Control::Audit(Store& store, const Caller& caller,
                            const char* method, const std::string& target) {
  return store.AppendAudit({.time_ns = absl::ToUnixNanos(options_.clock->Now()),
                            .principal = caller.principal,
                            .peer = caller.peer,
                            .method = method,
                            .target = target,
                            .outcome = "OK"});
}

absl::StatusOr<bool> Control::Seen(Store& store, const Caller& caller,
                                   const char* method,
                                   const std::string& request_id,
                                   const std::string& body,
                                   const std::string& target) {
  if (request_id.empty()) return false;
  const std::string sha = Sha256(body);
  CADRE_ASSIGN_OR_RETURN(
      const std::optional<RequestRow> row,
      store.FindRequest(caller.principal, method, request_id));
  if (!row.has_value()) {
    CADRE_RETURN_IF_ERROR(
        store.PutRequest({caller.principal, method, request_id, sha, target,
                          absl::ToUnixSeconds(options_.clock->Now())}));
    return false;
  }
  if (row->body_sha256 == sha) return true;
  return Taken("REQUEST_ID_REUSED", row->job_id,
               absl::StrCat("request_id ", request_id, " was used for a ",
                            method, " of '", row->job_id,
                            "' with another body; a new call needs a new id"));
}

void Control::ChangeJob(const Caller& caller, const JobVerb& verb,
                        Done<v1::Job> done) {
  const std::string id = JobId(verb.name);
  if (verb.priority.has_value() &&
      (*verb.priority < 0 || *verb.priority > 100)) {
    return done(absl::InvalidArgumentError(absl::StrCat(
        "priority is ", *verb.priority, "; it must be from 0 to 100")));
  }
  auto revalidate = std::make_shared<bool>(false);
  journal_->Submit(
      {.decide = [this, caller, verb, id,
                  revalidate](Store& store) -> absl::Status {
         const RecordPtr record = ledger_.Find(id);
         if (record == nullptr) return NoSuchJob(verb.name);
         CADRE_RETURN_IF_ERROR(CheckOwner(caller, record->job()));
         CADRE_ASSIGN_OR_RETURN(
             const bool seen,
             Seen(store, caller, verb.method, verb.request_id,
                  absl::StrCat(id, "\n", verb.etag, "\n",
                               verb.priority.value_or(-1), "\n", verb.reason),
                  id));
         if (seen) return absl::OkStatus();
         CADRE_RETURN_IF_ERROR(CheckEtag(verb.etag, record->job()));
         JobChange change{.record = *record};
         CADRE_RETURN_IF_ERROR(ledger_.Apply(
             verb.trigger, absl::StrCat(verb.past, " by ", caller.principal),
             &change));
         if (change.events.empty()) return absl::OkStatus();  // a repetition
         if (verb.priority.has_value()) {
           change.job().set_priority(*verb.priority);
         }
         const std::string reason = verb.reason.substr(0, kMaxReason);
         change.AddEvent(
             v1::Event::SEVERITY_INFO, "USER_ACTION",
             absl::StrCat(caller.principal, " ", verb.past, " the job",
                          reason.empty() ? "" : ": ", reason),
             {{"verb", std::string(TriggerName(verb.trigger))},
              {"reason", reason}});
         // The terminal event of the stream is the state change.
         std::rotate(change.events.begin(), change.events.end() - 1,
                     change.events.end());
         *revalidate = change.job().state() == v1::JOB_STATE_VALIDATING;
         CADRE_RETURN_IF_ERROR(
             Audit(store, caller, verb.method, record->job().name()));
         CADRE_RETURN_IF_ERROR(ledger_.Save(store, std::move(change)));
         return Evaluate(store, id);
       },
       .done =
           [this, caller, id, verb, revalidate,
            done](const absl::Status& status) {
             if (absl::IsPermissionDenied(status)) {
               AuditDenial(caller, verb.method, ErrorReason(status));
             }
             if (!status.ok()) return done(status);
             if (*revalidate) CheckData(id);
             const RecordPtr record = table_.Find(id);
             // Deleted meanwhile.
             if (record == nullptr) return done(NoSuchJob(verb.name));
             done(table_.View(*record, false));
           }});
}

void Control::DeleteJob(const Caller& caller,
                        const v1::DeleteJobRequest& request,
                        Done<v1::DeleteJobResponse> done) {
  const std::string id = JobId(request.name());
  journal_->Submit(
      {.decide = [this, caller, request, id](Store& store) -> absl::Status {
         const RecordPtr record = ledger_.Find(id);
         if (record == nullptr) {
           CADRE_ASSIGN_OR_RETURN(const bool buried, store.IsTombstone(id));
           return buried ? absl::OkStatus() : NoSuchJob(request.name());
         }
         CADRE_RETURN_IF_ERROR(CheckOwner(caller, record->job()));
         CADRE_RETURN_IF_ERROR(CheckEtag(request.etag(), record->job()));
         if (!IsTerminal(record->job().state())) {
           return Error(
               absl::StatusCode::kFailedPrecondition, "JOB_STATE",
               absl::StrCat(record->job().name(), " is ",
                            StateName(record->job().state()),
                            "; only an ended job can be deleted: cancel it "
                            "first"),
               {{"state", StateName(record->job().state())}});
         }
         if (request.purge_artifacts()) {
           CADRE_RETURN_IF_ERROR(CheckPurge(*record));
         }
         CADRE_LOG(INFO) << record->job().name() << ": deleted by "
                         << caller.principal << " "
                         << request.reason().substr(0, kMaxReason);
         CADRE_RETURN_IF_ERROR(
             Audit(store, caller, "DeleteJob", record->job().name()));
         return Forget(store, record, request.purge_artifacts());
       },
       .done =
           [this, caller, id, done](const absl::Status& status) {
             if (absl::IsPermissionDenied(status)) {
               AuditDenial(caller, "DeleteJob", ErrorReason(status));
             }
             if (!status.ok()) return done(status);
             request_pool_->Add([this, id] { options_.series->Forget(id); });
             done(v1::DeleteJobResponse());
           }});
}

}  // namespace cadre::coordinator
