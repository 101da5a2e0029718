#include "coordinator/download.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/artifact_files.h"
#include "coordinator/unary.h"

namespace cadre::coordinator {
namespace {

constexpr char kMethod[] = "DownloadArtifact";

// The folder asked for, if the caller may have it.
absl::StatusOr<ArtifactFolder> Choose(const ServiceDeps& deps,
                                      const Caller& caller,
                                      const std::string& name) {
  const std::string id = JobOfArtifact(name);
  const RecordPtr record = deps.control->table().Find(id);
  if (record == nullptr) {
    return NoSuchJob(id.empty() ? name : absl::StrCat("jobs/", id));
  }
  const v1::Job& job = record->job();
  if (caller.role != Role::kAdmin && caller.principal != job.owner()) {
    deps.control->AuditDenial(caller, kMethod, "NOT_OWNER");
    return Error(absl::StatusCode::kPermissionDenied, "NOT_OWNER",
                 absl::StrCat(job.name(), " belongs to ", job.owner(),
                              "; only its owner and operators may download "
                              "its files"));
  }
  return FindArtifact(*record, name);
}

}  // namespace

// Deletes itself. Of Read, OnWriteDone and the end only one is under way at a
// time: each is caused by the one before.
class Downloads::Stream final
    : public grpc::ServerWriteReactor<v1::DownloadArtifactResponse> {
 public:
  Stream(Downloads* owner, const v1::DownloadArtifactRequest& request)
      : owner_(owner), request_(request) {}

  void Begin(const absl::StatusOr<Caller>& caller) {
    if (!caller.ok()) return End(caller.status());
    const auto folder = Choose(owner_->deps_, *caller, request_.name());
    if (!folder.ok()) return End(folder.status());
    folder_ = *folder;
    if (owner_->streams_.fetch_add(1) >= kMaxStreams) {
      owner_->streams_.fetch_sub(1);
      return End(
          WithRetry(Error(absl::StatusCode::kResourceExhausted, "STREAM_LIMIT",
                          absl::StrCat("the coordinator serves ", kMaxStreams,
                                       " downloads at a time; try again soon")),
                    absl::Seconds(5)));
    }
    counted_ = true;
    Queue();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the reader has left"));
    Queue();
  }
  void OnCancel() override { gone_ = true; }
  void OnDone() override {
    if (counted_) owner_->streams_.fetch_sub(1);
    delete this;
  }

 private:
  void Queue() {
    owner_->pool_.Add([this] { Read(); }, [this] { End(ShuttingDown()); });
  }

  void Read() {
    if (gone_) return End(absl::CancelledError("the reader has left"));
    part_.Clear();
    const absl::StatusOr<bool> more = Fill();
    if (!more.ok()) return End(more.status());
    if (!*more) return End(absl::OkStatus());
    StartWrite(&part_);
  }

  // The next part; false: that was all.
  absl::StatusOr<bool> Fill() {
    if (!listed_) {
      listed_ = true;
      auto* listing = part_.mutable_listing();
      if (request_.path_only()) {
        listing->set_storage_path(folder_.storage_path);
        return true;
      }
      CADRE_ASSIGN_OR_RETURN(*listing, ListArtifactFiles(folder_));
      if (!request_.file().empty()) {
        // Before the listing goes out: a call that cannot be served fails at
        // once.
        CADRE_ASSIGN_OR_RETURN(
            FileDownload file,
            FileDownload::Open(*listing, request_.file(), request_.offset()));
        file_ = std::move(file);
      }
      return true;
    }
    if (!file_.has_value()) return false;
    return file_->Next(part_.mutable_chunk());
  }

  void End(const absl::Status& status) {
    CallMetrics{owner_->deps_.metrics, owner_->deps_.clock}.Count(kMethod,
                                                                  status);
    Finish(ToGrpcStatus(status));
  }

  Downloads* const owner_;
  const v1::DownloadArtifactRequest request_;
  ArtifactFolder folder_;
  bool counted_ = false;
  bool listed_ = false;
  std::atomic<bool> gone_{false};
  std::optional<FileDownload> file_;
  v1::DownloadArtifactResponse part_;
};

grpc::ServerWriteReactor<v1::DownloadArtifactResponse>* Downloads::Start(
    grpc::CallbackServerContext* context,
    const v1::DownloadArtifactRequest& request) {
  auto* stream = new Stream(this, request);
  stream->Begin(deps_.gate->Admit(*context, kMethod));
  return stream;
}

}  // namespace cadre::coordinator
