#include "coordinator/rendezvous.h"

#include "absl/strings/str_cat.h"

namespace cadre::coordinator {

absl::Status Rendezvous::Publish(const v1::SyncRequest& request) {
  int64_t bytes = 0;
  absl::MutexLock lock(&mutex_);
  v1::Rendezvous* merged = nullptr;
  for (const auto* published :
       {&request.preparing().published(), &request.ready().published(),
        &request.running().published()}) {
    for (const auto& [key, value] : *published) {
      bytes += static_cast<int64_t>(key.size() + value.size());
      if (bytes > kMaxBytesPerRank) {
        return absl::InvalidArgumentError(absl::StrCat(
            "worker ", request.worker_id(), " publishes more than ",
            kMaxBytesPerRank, " bytes for the rendezvous"));
      }
      if (merged == nullptr) {
        merged = &by_job_[request.job()];
        if (merged->attempt_epoch() > request.attempt_epoch()) {
          return absl::OkStatus();
        }
        if (merged->attempt_epoch() < request.attempt_epoch()) {
          merged->Clear();
          merged->set_attempt_epoch(request.attempt_epoch());
        }
      }
      (*merged->mutable_values())[key] = value;
    }
  }
  return absl::OkStatus();
}

v1::Rendezvous Rendezvous::Merged(const std::string& job, int64_t epoch) const {
  absl::MutexLock lock(&mutex_);
  const auto it = by_job_.find(job);
  if (it != by_job_.end() && it->second.attempt_epoch() == epoch) {
    return it->second;
  }
  v1::Rendezvous none;
  none.set_attempt_epoch(epoch);
  return none;
}

void Rendezvous::Forget(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  by_job_.erase(job);
}

}  // namespace cadre::coordinator
