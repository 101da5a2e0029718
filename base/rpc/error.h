#ifndef CADRE_BASE_RPC_ERROR_H_
#define CADRE_BASE_RPC_ERROR_H_

// Errors of the API as absl::Status: one google.rpc.ErrorInfo (domain "cadre")
// plus typed details, carried as payloads under their protobuf type URL.
//
//   absl::Status status = Error(absl::StatusCode::kNotFound, "JOB_NOT_FOUND",
//                               "there is no job 'x'; see: cadre list");
//   AddDetail(info, &status);
//   if (ErrorReason(status) == "JOB_NOT_FOUND") ...
//
// Thread-safe: no state.

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "google/rpc/status.pb.h"

namespace cadre {

// A status with an ErrorInfo of domain "cadre".
absl::Status Error(absl::StatusCode code, absl::string_view reason,
                   absl::string_view message,
                   const std::map<std::string, std::string>& metadata = {});

// Adds a typed detail; replaces one of the same type. No effect on OK.
void AddDetail(const google::protobuf::Message& detail, absl::Status* status);

// Adds RetryInfo: the caller may repeat the call after `delay`.
absl::Status WithRetry(absl::Status status, absl::Duration delay);

// The reason of the ErrorInfo; "" if there is none.
std::string ErrorReason(const absl::Status& status);

// A value of the ErrorInfo's metadata; "" if absent.
std::string ErrorMetadata(const absl::Status& status, absl::string_view key);

// Reads the detail of message's type; false if the status has none.
bool ReadDetail(const absl::Status& status, google::protobuf::Message* message);

template <typename T>
std::optional<T> GetDetail(const absl::Status& status) {
  T detail;
  if (!ReadDetail(status, &detail)) return std::nullopt;
  return detail;
}

// Conversion to the wire form and back, details included.
google::rpc::Status ToRpcStatus(const absl::Status& status);
absl::Status FromRpcStatus(const google::rpc::Status& status);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_ERROR_H_
