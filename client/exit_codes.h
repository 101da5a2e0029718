#ifndef CADRE_CLIENT_EXIT_CODES_H_
#define CADRE_CLIENT_EXIT_CODES_H_

// What the exit code of `cadre` tells a script. Documented in docs/cli.md;
// never renumber.

#include "absl/status/status.h"

namespace cadre::client {

enum ExitCode {
  kOk = 0,
  kJobFailed = 1,
  kUsage = 2,
  kNotFound = 3,
  kInvalid = 4,  // job file or data set
  kAuth = 5,
  kConflict = 6,  // or wrong state
  kQuota = 7,
  kUnavailable = 8,  // or deadline
  kJobCancelled = 9,
  kInternal = 10,
  kInterrupted = 130,  // Ctrl-C while watching; the job goes on
};

// The exit code for an error of an RPC or a local check.
inline int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
      return kInvalid;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return kAuth;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
      return kConflict;
    case absl::StatusCode::kResourceExhausted:
      return kQuota;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kUnavailable;
    default:
      return kInternal;
  }
}

}  // namespace cadre::client

#endif  // CADRE_CLIENT_EXIT_CODES_H_
