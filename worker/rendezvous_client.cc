#include "worker/rendezvous_client.h"

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"

namespace cadre {

absl::Status RendezvousClient::Set(absl::string_view key,
                                   absl::string_view value) {
  const int64_t bytes = link_->published_bytes() +
                        static_cast<int64_t>(key.size() + value.size());
  if (bytes > kMaxBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rendezvous: publishing '", key, "' would make ", bytes,
                     " bytes of this rank; the limit is ", kMaxBytes));
  }
  link_->Publish(std::string(key), std::string(value));
  Failpoint("worker.rendezvous");
  return absl::OkStatus();
}

absl::StatusOr<std::string> RendezvousClient::Get(absl::string_view key,
                                                  absl::Duration timeout) {
  return link_->WaitForValue(std::string(key), timeout);
}

}  // namespace cadre
