// Control's part that takes jobs in.

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>
#include <prometheus/counter.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/config/yaml_proto.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/attempt_change.h"
#include "coordinator/control.h"
#include "google/rpc/error_details.pb.h"
#include "plan/path_roots.h"
#include "plan/validate.h"

namespace cadre::coordinator {
namespace {

constexpr char kCreateJob[] = "CreateJob";
constexpr int kMaxDiagnostics = 50;

bool IsUuid(const std::string& text) {
  if (text.size() != 36) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : !absl::ascii_isxdigit(text[i])) return false;
  }
  return true;
}

// Over the request as sent, so that an upgrade with other defaults cannot break
// a retry.
std::string BodySha256(v1::CreateJobRequest request) {
  request.clear_request_id();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    request.SerializeToCodedStream(&coded);
  }
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

// The file keeps every rule, but no layout fits its workers.
bool OnlyThePlanFails(const v1::Diagnostics& diagnostics) {
  return std::all_of(
      diagnostics.items().begin(), diagnostics.items().end(),
      [](const v1::Diagnostic& item) {
        return item.severity() != v1::Diagnostic::SEVERITY_ERROR ||
               item.field() == "parallelism" ||
               item.field() == "resources.min_device_memory_bytes";
      });
}

}  // namespace

void Control::CreateJob(const Caller& caller, v1::CreateJobRequest request,
                        Done<v1::CreateJobResponse> answer) {
  Done<v1::CreateJobResponse> done =
      [this, answer](absl::StatusOr<v1::CreateJobResponse> result) {
        const char* kind = !result.ok()         ? "refused"
                           : result->replayed() ? "replayed"
                                                : "ok";
        options_.metrics->Counter(metric::kJobsCreated, {{"result", kind}})
            .Increment();
        answer(std::move(result));
      };
  if (!IsUuid(request.request_id()) && !request.validate_only()) {
    return done(Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_MISSING",
                      absl::StrCat("request_id is '", request.request_id(),
                                   "'; set a new UUID per job and repeat it "
                                   "with every retry")));
  }
  if (request.source_case() == v1::CreateJobRequest::SOURCE_NOT_SET) {
    return done(Error(absl::StatusCode::kInvalidArgument, "JOB_FILE_INVALID",
                      "neither job_yaml nor spec is set"));
  }
  const std::string sha = BodySha256(request);
  auto shared = std::make_shared<v1::CreateJobRequest>(std::move(request));
  const auto prepare = [this, caller, shared, sha, done] {
    request_pool_->Add([this, caller, shared, sha,
                        done] { PrepareCreate(caller, *shared, sha, done); },
                       [done] { done(ShuttingDown()); });
  };
  if (shared->validate_only()) return prepare();
  // A new id, and nearly all are, must not wait for the disk twice: whether it
  // is known is read beside the writer. Insert looks again.
  request_pool_->Add(
      [this, caller, shared, sha, done, prepare] {
        if (IsNewRequest(caller.principal, shared->request_id())) {
          return PrepareCreate(caller, *shared, sha, done);
        }
        Replay(caller, shared, sha, prepare, done);
      },
      [done] { done(ShuttingDown()); });
}

bool Control::IsNewRequest(const std::string& principal,
                           const std::string& request_id) {
  std::unique_ptr<Database> reader;
  {
    absl::MutexLock lock(&readers_mutex_);
    if (!readers_.empty()) {
      reader = std::move(readers_.back());
      readers_.pop_back();
    }
  }
  if (reader == nullptr) {
    auto opened = journal_->OpenReader();
    if (!opened.ok()) return false;
    reader = std::make_unique<Database>(*std::move(opened));
  }
  bool is_new = false;
  {
    Store store(reader.get());
    const auto row = store.FindRequest(principal, kCreateJob, request_id);
    is_new = row.ok() && !row->has_value();
  }
  absl::MutexLock lock(&readers_mutex_);
  readers_.push_back(std::move(reader));
  return is_new;
}

// A retry is answered before anything is checked: the first call's data may be
// gone by now.
void Control::Replay(const Caller& caller,
                     const std::shared_ptr<v1::CreateJobRequest>& shared,
                     const std::string& sha, std::function<void()> prepare,
                     Done<v1::CreateJobResponse> done) {
  auto replay = std::make_shared<std::optional<RequestRow>>();
  journal_->Submit(
      {.decide = [principal = caller.principal, shared, sha,
                  replay](Store& store) -> absl::Status {
         CADRE_ASSIGN_OR_RETURN(
             *replay,
             store.FindRequest(principal, kCreateJob, shared->request_id()));
         if (!replay->has_value() || (*replay)->body_sha256 == sha) {
           return absl::OkStatus();
         }
         return Taken("REQUEST_ID_REUSED", (*replay)->job_id,
                      absl::StrCat("request_id ", shared->request_id(),
                                   " was used for job '", (*replay)->job_id,
                                   "' with another body"));
       },
       .done =
           [this, replay, prepare, done](const absl::Status& status) {
             if (!status.ok()) return done(status);
             if (!replay->has_value()) return prepare();
             v1::CreateJobResponse response;
             response.set_replayed(true);
             const RecordPtr record = table_.Find((*replay)->job_id);
             if (record == nullptr) return done(NoSuchJob((*replay)->job_id));
             *response.mutable_job() = table_.View(*record, false);
             *response.mutable_plan() = record->job().plan();
             done(std::move(response));
           }});
}

void Control::PrepareCreate(const Caller& caller,
                            const v1::CreateJobRequest& request,
                            const std::string& body_sha256,
                            Done<v1::CreateJobResponse> done) {
  v1::JobSpec spec = request.spec();
  YamlMarks marks;
  if (request.has_job_yaml()) {
    v1::Diagnostics diagnostics;
    if (!ParseYaml(request.job_yaml(), &spec, &marks, &diagnostics)) {
      PlaceDiagnostics(marks, kMaxDiagnostics, &diagnostics);
      return done(Refusal("JOB_FILE_INVALID", diagnostics));
    }
  }
  if (!request.job_id().empty()) spec.set_name(request.job_id());
  const v1::JobSpec resolved = ResolveJob(spec, request.base_dir());
  // Before anything is opened: an error about a file would tell of it.
  const absl::Status inside = CheckJobPaths(resolved, options_.allowed_roots);
  if (!inside.ok()) AuditDenial(caller, kCreateJob, "PATH_OUTSIDE_ROOTS");
  std::shared_ptr<const ModelFacts> facts;
  if (inside.ok()) facts = facts_.Load(resolved.model());
  Validated validated = ValidateJob(
      spec,
      {.base_dir = request.base_dir(), .allowed_roots = options_.allowed_roots},
      facts.get());
  PlaceDiagnostics(marks, kMaxDiagnostics, &validated.diagnostics);
  if (!validated.ok()) {
    return done(Refusal(OnlyThePlanFails(validated.diagnostics)
                            ? "PLAN_IMPOSSIBLE"
                            : "JOB_FILE_INVALID",
                        validated.diagnostics));
  }
  if (!inside.ok()) return done(inside);
  DataVerdict data = options_.data->CheckHead(validated.spec);
  validated.diagnostics.MergeFrom(data.diagnostics);
  if (!data.status.ok()) {
    PlaceDiagnostics(marks, kMaxDiagnostics, &data.diagnostics);
    return done(Refusal("DATASET_INVALID", data.diagnostics));
  }

  JobChange change;
  v1::Job& job = change.job();
  job.set_owner(caller.principal);
  *job.mutable_labels() = spec.labels();
  job.set_priority(validated.spec.priority());
  job.set_state(v1::JOB_STATE_VALIDATING);
  *job.mutable_spec() = spec;
  *job.mutable_config_snapshot() = validated.spec;
  *job.mutable_plan() = validated.plan;
  if (!validated.smaller.empty()) {
    *change.record.add_plans() = validated.plan;
    for (const v1::Plan& plan : validated.smaller) {
      *change.record.add_plans() = plan;
    }
  }
  RestoreBudgets(&change);
  auto response = std::make_shared<v1::CreateJobResponse>();
  *response->mutable_diagnostics() = validated.diagnostics;
  *response->mutable_plan() = validated.plan;
  if (request.validate_only()) {
    *response->mutable_job() = job;
    return done(*response);
  }
  auto shared = std::make_shared<JobChange>(std::move(change));
  auto call = std::make_shared<v1::CreateJobRequest>(request);
  journal_->Submit(
      {.decide =
           [this, caller, call, body_sha256, shared, response](Store& store) {
             return Insert(store, caller, *call, body_sha256, *shared,
                           response.get());
           },
       .done =
           [this, response, done](const absl::Status& status) {
             if (!status.ok()) return done(status);
             const std::string id = JobId(response->job().name());
             if (const RecordPtr record = table_.Find(id)) {
               *response->mutable_job() = table_.View(*record, false);
               if (!response->replayed()) CheckData(id);
             }
             done(*response);
           }});
}

absl::Status Control::Insert(Store& store, const Caller& caller,
                             const v1::CreateJobRequest& request,
                             const std::string& body_sha256, JobChange change,
                             v1::CreateJobResponse* response) {
  const std::string& principal = caller.principal;
  // Again: a concurrent call with the same id may have come first.
  CADRE_ASSIGN_OR_RETURN(
      const std::optional<RequestRow> seen,
      store.FindRequest(principal, kCreateJob, request.request_id()));
  if (seen.has_value()) {
    if (seen->body_sha256 != body_sha256) {
      return Taken("REQUEST_ID_REUSED", seen->job_id,
                   absl::StrCat("request_id ", request.request_id(),
                                " was used for job '", seen->job_id,
                                "' with another body"));
    }
    response->set_replayed(true);
    response->mutable_job()->set_name(absl::StrCat("jobs/", seen->job_id));
    return absl::OkStatus();
  }
  if (journal_->disk_full()) {
    return WithRetry(
        Error(absl::StatusCode::kResourceExhausted, "STATE_DISK_FULL",
              "the disk of the coordinator's state is full and takes no new "
              "job; free space, then retry"),
        absl::Seconds(30));
  }
  const int queued = ledger_.Waiting(principal);
  if (queued >= options_.max_queued_jobs) {
    absl::Status status = Error(
        absl::StatusCode::kResourceExhausted, "QUOTA_QUEUED_JOBS",
        absl::StrCat(principal, " has ", queued, " jobs waiting, the limit is ",
                     options_.max_queued_jobs, "; wait or cancel some"));
    google::rpc::QuotaFailure failure;
    auto* violation = failure.add_violations();
    violation->set_subject(absl::StrCat("user:", principal));
    violation->set_description(std::string(status.message()));
    AddDetail(failure, &status);
    return status;
  }
  v1::Job& job = change.job();
  std::string id = job.config_snapshot().name();
  if (id.empty()) {
    do {
      id = options_.ids->JobId();
    } while (ledger_.Find(id) != nullptr);
  }
  CADRE_ASSIGN_OR_RETURN(const bool buried, store.IsTombstone(id));
  if (buried || ledger_.Find(id) != nullptr) {
    return Taken("JOB_ID_TAKEN", id,
                 absl::StrCat("there is or was a job '", id,
                              "', and names are never reused; choose another "
                              "or leave the name out"));
  }
  const std::string& from = job.config_snapshot().checkpoint().resume_from();
  if (from.rfind("jobs/", 0) == 0) {
    for (const auto& [other, record] : ledger_.jobs()) {
      for (const v1::Checkpoint& checkpoint : record->checkpoints()) {
        if (checkpoint.name() != from) continue;
        change.record.set_resume_path(checkpoint.storage_path());
        change.record.set_resume_manifest_sha256(checkpoint.manifest_sha256());
      }
    }
    if (change.record.resume_path().empty()) {
      return NotFound("CHECKPOINT_NOT_FOUND", "cadre.v1.Checkpoint", from,
                      absl::StrCat("checkpoint.resume_from: there is no "
                                   "committed checkpoint '",
                                   from,
                                   "'; 'cadre checkpoints' shows those "
                                   "of a job"));
    }
  } else {
    change.record.set_resume_path(from);
  }
  job.set_name(absl::StrCat("jobs/", id));
  job.set_uid(options_.ids->Uuid());
  job.mutable_config_snapshot()->set_name(id);
  const absl::Time now = options_.clock->Now();
  *job.mutable_create_time() = ToProto(now);
  *change.record.mutable_state_time() = ToProto(now);
  change.record.set_create_sequence(ledger_.NextSequence());
  const std::string& output = job.config_snapshot().output().dir();
  change.record.set_output_dir(
      output.empty() ? absl::StrCat(options_.outputs_dir, "/", id) : output);
  change.record.set_checkpoint_dir(
      absl::StrCat(options_.checkpoints_dir, "/", id));
  change.AddEvent(v1::Event::SEVERITY_INFO, "CREATED",
                  absl::StrCat("created by ", principal));
  CADRE_RETURN_IF_ERROR(
      store.PutRequest({principal, kCreateJob, request.request_id(),
                        body_sha256, id, absl::ToUnixSeconds(now)}));
  CADRE_RETURN_IF_ERROR(Audit(store, caller, kCreateJob, job.name()));
  response->mutable_job()->set_name(job.name());
  CADRE_LOG(INFO) << job.name() << ": created";
  return ledger_.Save(store, std::move(change));
}

}  // namespace cadre::coordinator
