#include "worker/comm/rendezvous_store.h"

#include "absl/strings/str_cat.h"
#include "worker/comm/monotonic_wait.h"

namespace cadre {

absl::Status InMemoryStore::Set(absl::string_view key,
                                absl::string_view value) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, added] =
      values_.emplace(std::string(key), std::string(value));
  if (!added && at->second != value) {
    return absl::AlreadyExistsError(
        absl::StrCat("rendezvous key ", key, " is set already"));
  }
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> InMemoryStore::Get(absl::string_view key,
                                               absl::Duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::string name(key);
  WaitUntil(changed_, lock, DeadlineAfter(timeout),
            [&] { return aborted_ || values_.contains(name); });
  if (aborted_) {
    return absl::AbortedError(
        absl::StrCat("waiting for rendezvous key ", name, ": aborted"));
  }
  const auto at = values_.find(name);
  if (at == values_.end()) {
    return absl::DeadlineExceededError(
        absl::StrCat("rendezvous key ", name, " was not set within ",
                     absl::FormatDuration(timeout)));
  }
  return at->second;
}

void InMemoryStore::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

}  // namespace cadre
