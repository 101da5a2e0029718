#include "base/rpc/grpc_status.h"

#include <grpcpp/support/status.h>

#include "base/rpc/error.h"
#include "google/rpc/error_details.pb.h"

namespace cadre {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::Status with_reason = status;
  if (ErrorReason(status).empty()) {
    google::rpc::ErrorInfo info;
    info.set_domain("cadre");
    info.set_reason(absl::StatusCodeToString(status.code()));
    AddDetail(info, &with_reason);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()),
                      ToRpcStatus(with_reason).SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status rpc;
  if (!status.error_details().empty() &&
      rpc.ParseFromString(status.error_details()) &&
      rpc.code() == static_cast<int>(status.error_code())) {
    return FromRpcStatus(rpc);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace cadre
