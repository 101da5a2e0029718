#include "worker/failure.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "kernels/common/device_error.h"
#include "worker/comm/peer_failure.h"

namespace cadre {
namespace {

using cadre::v1::EndedState;
using cadre::v1::FailureCause;

FailureCause CauseOf(absl::StatusCode code, Activity activity) {
  const bool writes =
      activity == Activity::kSave || activity == Activity::kExport;
  switch (code) {
    // Only collectives answer these: a peer is silent, gone, or has aborted.
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return cadre::v1::FAILURE_CAUSE_COMMUNICATION;
    // While writing it is the disk that is full.
    case absl::StatusCode::kResourceExhausted:
      return writes ? cadre::v1::FAILURE_CAUSE_STORAGE
                    : cadre::v1::FAILURE_CAUSE_OUT_OF_MEMORY;
    case absl::StatusCode::kOutOfRange:
      return activity == Activity::kTrain ? cadre::v1::FAILURE_CAUSE_NUMERIC
                                          : cadre::v1::FAILURE_CAUSE_INTERNAL;
    case absl::StatusCode::kDataLoss:
      return cadre::v1::FAILURE_CAUSE_STORAGE;
    // A path, a file or a value of the job; once training has begun these were
    // right, so it is the store that changed.
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      if (activity == Activity::kPrepare) {
        return cadre::v1::FAILURE_CAUSE_USER;
      }
      return writes ? cadre::v1::FAILURE_CAUSE_STORAGE
                    : cadre::v1::FAILURE_CAUSE_INTERNAL;
    default:
      return writes && code == absl::StatusCode::kUnknown
                 ? cadre::v1::FAILURE_CAUSE_STORAGE
                 : cadre::v1::FAILURE_CAUSE_INTERNAL;
  }
}

FailureCause CauseOf(const absl::Status& status, Activity activity) {
  const std::optional<DeviceErrorKind> kind = DeviceErrorOf(status);
  if (kind == DeviceErrorKind::kLaunch || kind == DeviceErrorKind::kHardware ||
      kind == DeviceErrorKind::kOther) {
    return cadre::v1::FAILURE_CAUSE_DEVICE_ERROR;
  }
  return CauseOf(status.code(), activity);
}

const char* NameOf(Activity activity) {
  switch (activity) {
    case Activity::kPrepare:
      return "preparing";
    case Activity::kTrain:
      return "training";
    case Activity::kSave:
      return "saving";
    case Activity::kExport:
      return "exporting";
  }
  return "";
}

}  // namespace

EndedState EndedByError(const absl::Status& status, Activity activity) {
  EndedState ended;
  ended.set_result(EndedState::RESULT_ERROR);
  ended.set_cause(CauseOf(status, activity));
  const absl::Status sent = WithoutDeviceError(status);
  *ended.mutable_status() = ToRpcStatus(sent);
  ended.set_evidence(
      absl::StrCat("while ", NameOf(activity), ": ", sent.ToString()));
  ended.set_secondary(ended.cause() == cadre::v1::FAILURE_CAUSE_COMMUNICATION);
  return ended;
}

absl::Status NamePeer(const absl::Status& status,
                      const cadre::v1::Assignment& assignment) {
  const std::optional<int> peer = FailedPeer(status);
  if (!peer.has_value() || *peer < 0 || *peer >= assignment.workers_size()) {
    return status;
  }
  // Without the payload: it is not for the wire.
  return absl::Status(
      status.code(),
      absl::StrCat("lost rank ", *peer, " (worker ", assignment.workers(*peer),
                   "): ", status.message()));
}

}  // namespace cadre
