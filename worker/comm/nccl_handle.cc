#include "worker/comm/nccl_handle.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/monotonic_wait.h"

namespace cadre {
namespace {

absl::Status NcclStatus(ncclResult_t result, absl::string_view call) {
  const std::string text =
      absl::StrCat("NCCL: ", call, ": ", ncclGetErrorString(result));
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return absl::OkStatus();
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InternalError(text);
    default:
      return absl::UnavailableError(absl::StrCat(
          text,
          "; a peer or the link to it is lost (NCCL_DEBUG=INFO in the "
          "worker's environment says more)"));
  }
}

ncclConfig_t NonBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

absl::Status CheckNcclVersion() {
  int version = 0;
  CADRE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "its version"));
  if (version >= 22803 && version <= 22808) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL version code ", version,
                     ": 2.28.3 to 2.28.8 are unsafe after an abort; install "
                     "2.28.9 or later"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id;
  CADRE_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "making an id"));
  return std::string(id.internal, sizeof(id.internal));
}

absl::Status NcclHandle::Init(const std::string& id) {
  ncclUniqueId unique;
  if (id.size() != sizeof(unique.internal)) {
    return absl::InternalError(absl::StrCat("NCCL: an id of ", id.size(),
                                            " bytes in place of ",
                                            sizeof(unique.internal)));
  }
  std::memcpy(unique.internal, id.data(), id.size());
  ncclConfig_t config = NonBlocking();
  return Settle(ncclCommInitRankConfig(&comm_, options_.size, unique,
                                       options_.rank, &config),
                "meeting the peers", options_.rendezvous_timeout);
}

absl::Status NcclHandle::Split(int color, int key, NcclHandle* part) {
  constexpr char kWhat[] = "splitting";
  const absl::Duration timeout = options_.rendezvous_timeout;
  ncclConfig_t config = NonBlocking();
  CADRE_RETURN_IF_ERROR(Settle(
      ncclCommSplit(comm_, color, key, &part->comm_, &config), kWhat, timeout));
  // A thread of NCCL's makes the new communicator.
  CADRE_RETURN_IF_ERROR(Poll(kWhat, timeout, [part]() -> absl::StatusOr<bool> {
    return std::atomic_ref(part->comm_).load() != nullptr;
  }));
  CADRE_RETURN_IF_ERROR(part->Settle(ncclInProgress, kWhat, timeout));
  CADRE_RETURN_IF_ERROR(
      NcclStatus(ncclCommUserRank(part->comm_, &part->options_.rank), kWhat));
  return NcclStatus(ncclCommCount(part->comm_, &part->options_.size), kWhat);
}

absl::Status NcclHandle::Usable() {
  if (status_.ok() && aborted_) {
    return Fail(absl::AbortedError("NCCL: aborted"));
  }
  return status_;
}

absl::Status NcclHandle::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  if (comm_ != nullptr) {
    ncclCommAbort(comm_);
    comm_ = nullptr;
  }
  return status_;
}

absl::Status NcclHandle::Poll(absl::string_view what, absl::Duration timeout,
                              absl::FunctionRef<absl::StatusOr<bool>()> done) {
  const MonotonicTime begin = std::chrono::steady_clock::now();
  const MonotonicTime deadline = DeadlineAfter(timeout);
  while (true) {
    const absl::StatusOr<bool> finished = done();
    if (!finished.ok()) return Fail(finished.status());
    if (*finished) return absl::OkStatus();
    ncclResult_t async = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &async);
    for (const ncclResult_t result : {asked, async}) {
      const absl::Status status = NcclStatus(result, what);
      if (!status.ok()) return Fail(status);
    }
    if (aborted_) return Fail(absl::AbortedError("NCCL: aborted"));
    const MonotonicTime now = std::chrono::steady_clock::now();
    if (now >= deadline) {
      return Fail(absl::DeadlineExceededError(absl::StrCat(
          "NCCL: ", what, ": rank ", options_.rank, " of ", options_.size,
          " waited ", absl::FormatDuration(timeout), " for its peers")));
    }
    // Most calls take microseconds; a long wait leaves the core to others.
    if (now - begin > std::chrono::milliseconds(2)) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

absl::Status NcclHandle::Settle(int result, absl::string_view what,
                                absl::Duration timeout) {
  const absl::Status status =
      NcclStatus(static_cast<ncclResult_t>(result), what);
  if (!status.ok()) return Fail(status);
  if (result != ncclInProgress) return absl::OkStatus();
  return Poll(what, timeout, [this, what]() -> absl::StatusOr<bool> {
    ncclResult_t async = ncclSuccess;
    CADRE_RETURN_IF_ERROR(
        NcclStatus(ncclCommGetAsyncError(comm_, &async), what));
    CADRE_RETURN_IF_ERROR(NcclStatus(async, what));
    return async != ncclInProgress;
  });
}

void NcclHandle::Close() {
  if (comm_ == nullptr) return;
  if (status_.ok() && !aborted_ &&
      Settle(ncclCommFinalize(comm_), "closing", absl::Seconds(10)).ok()) {
    ncclCommDestroy(comm_);
  } else if (comm_ != nullptr) {
    ncclCommAbort(comm_);
  }
  comm_ = nullptr;
}

}  // namespace cadre
