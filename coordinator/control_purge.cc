// Control's part that forgets ended jobs, and removes their folders where that
// is asked for. A folder is noted in the journal together with the job's burial
// and removed after the commit; what a crash leaves is removed at the next
// start.

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "coordinator/page.h"

namespace cadre::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr size_t kJobsPerCall = 100;
constexpr char kNoted[] = "remove/";  // keys of meta rows; then the folder

// Below the root and not the root itself, by name: the folders are the
// coordinator's own.
bool LiesBelow(const std::string& path, const std::string& root) {
  const std::string top = fs::path(root).lexically_normal().string() + "/";
  const std::string clean = fs::path(path).lexically_normal().string();
  return absl::StartsWith(clean, top) && clean.size() > top.size();
}

// Of a path that names the folder or something in it.
bool Uses(const std::string& path, const std::string& folder) {
  return !path.empty() && !folder.empty() &&
         (path == folder || LiesBelow(path, folder));
}

}  // namespace

std::string Control::UserOf(const state::v1::JobRecord& record) const {
  for (const auto& [id, other] : ledger_.live()) {
    const v1::JobSpec& spec = other->job().config_snapshot();
    for (const std::string& path :
         {other->resume_path(), spec.checkpoint().resume_from(),
          spec.model().path(), spec.model().adapter()}) {
      if (Uses(path, record.checkpoint_dir()) ||
          Uses(path, record.output_dir())) {
        return other->job().name();
      }
    }
  }
  return "";
}

absl::Status Control::CheckPurge(const state::v1::JobRecord& record) const {
  const std::string user = UserOf(record);
  if (!user.empty()) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "CHECKPOINT_IN_USE",
        absl::StrCat(user, " starts from files of ", record.job().name(),
                     ": let it end first, or keep the files"),
        {{"job", user}});
  }
  std::error_code error;
  if (record.checkpoints_size() > 0 &&
      !fs::exists(record.checkpoint_dir(), error)) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "ARTIFACT_NOT_LOCAL",
        absl::StrCat("the checkpoints of ", record.job().name(), " lie in ",
                     record.checkpoint_dir(),
                     ", which the coordinator does not see: mount it there, "
                     "or delete the job without purging"),
        {{"path", record.checkpoint_dir()}});
  }
  return absl::OkStatus();
}

absl::Status Control::Forget(Store& store, const RecordPtr& record,
                             bool purge) {
  const std::string id = JobId(record->job().name());
  if (purge) {
    for (const auto& [path, root] :
         {std::pair{record->checkpoint_dir(), options_.checkpoints_dir},
          std::pair{record->output_dir(), options_.outputs_dir}}) {
      if (!LiesBelow(path, root)) continue;
      CADRE_RETURN_IF_ERROR(store.PutMeta(absl::StrCat(kNoted, path), id));
      folders_noted_ = true;
    }
  }
  return ledger_.Bury(store, id);
}

void Control::RemoveNotedFolders() {
  request_pool_->Add([this] {
    auto reader = journal_->OpenReader();
    if (!reader.ok()) return;
    const auto noted = Store(&*reader).MetaKeys(kNoted);
    if (!noted.ok()) return;
    std::vector<std::string> done;
    for (const std::string& key : *noted) {
      const std::string path = key.substr(sizeof(kNoted) - 1);
      // By rename first: nobody finds half a folder under its name.
      const std::string aside = absl::StrCat(path, ".purged");
      std::error_code error;
      if (fs::exists(path, error)) fs::rename(path, aside, error);
      if (!error) fs::remove_all(aside, error);
      if (error) {
        CADRE_LOG(WARNING) << "purge: cannot remove " << path << ": "
                           << error.message()
                           << "; it is tried again at the next start";
        continue;
      }
      done.push_back(key);
    }
    if (done.empty()) return;
    journal_->Submit({.decide = [done](Store& store) -> absl::Status {
      for (const std::string& key : done) {
        CADRE_RETURN_IF_ERROR(store.RemoveMeta(key));
      }
      return absl::OkStatus();
    }});
  });
}

void Control::PurgeJobs(const Caller& caller,
                        const v1::PurgeJobsRequest& request,
                        Done<v1::PurgeJobsResponse> done) {
  if (request.filter().empty()) {
    return done(Error(absl::StatusCode::kInvalidArgument, "FILTER_INVALID",
                      "filter is empty: say which jobs may go; \"state != "
                      "RUNNING\" matches every ended one"));
  }
  auto filter = JobFilter::Parse(request.filter());
  if (!filter.ok()) return done(filter.status());
  auto response = std::make_shared<v1::PurgeJobsResponse>();
  auto shared = std::make_shared<JobFilter>(*std::move(filter));
  journal_->Submit(
      {.decide = [this, caller, request, shared,
                  response](Store& store) -> absl::Status {
         response->Clear();
         std::vector<std::pair<absl::Time, RecordPtr>> found;
         for (const auto& [id, record] : ledger_.jobs()) {
           const v1::Job& job = record->job();
           if (!IsTerminal(job.state()) || !shared->Matches(job)) continue;
           const absl::Time end = FromProto(job.end_time());
           if (request.has_ended_before() &&
               end >= FromProto(request.ended_before())) {
             continue;
           }
           found.emplace_back(end, record);
         }
         std::sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) {
                     return std::pair(a.first, a.second->create_sequence()) <
                            std::pair(b.first, b.second->create_sequence());
                   });
         for (const auto& [end, record] : found) {
           if (static_cast<size_t>(response->names_size() +
                                   response->in_use_size()) == kJobsPerCall) {
             break;
           }
           const std::string name = record->job().name();
           if (request.purge_artifacts() && !CheckPurge(*record).ok()) {
             response->add_in_use(name);
             continue;
           }
           response->add_names(name);
           if (!request.force()) continue;
           CADRE_RETURN_IF_ERROR(Audit(store, caller, "PurgeJobs", name));
           CADRE_RETURN_IF_ERROR(
               Forget(store, record, request.purge_artifacts()));
         }
         response->set_remaining(static_cast<int>(found.size()) -
                                 response->names_size() -
                                 response->in_use_size());
         return absl::OkStatus();
       },
       .done =
           [this, request, response, caller, done](const absl::Status& status) {
             if (!status.ok()) return done(status);
             if (request.force() && response->names_size() > 0) {
               CADRE_LOG(INFO) << response->names_size() << " jobs purged by "
                               << caller.principal << " "
                               << request.reason().substr(0, 1024);
               const std::vector<std::string> names(response->names().begin(),
                                                    response->names().end());
               request_pool_->Add([this, names] {
                 for (const auto& name : names) {
                   options_.series->Forget(JobId(name));
                 }
               });
             }
             done(*response);
           }});
}

}  // namespace cadre::coordinator
