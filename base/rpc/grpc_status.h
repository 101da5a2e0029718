#ifndef CADRE_BASE_RPC_GRPC_STATUS_H_
#define CADRE_BASE_RPC_GRPC_STATUS_H_

// The only place where absl::Status meets grpc::Status. Details travel in the
// binary google.rpc.Status that gRPC carries beside the code. Thread-safe.

#include "absl/status/status.h"

namespace grpc {
class Status;
}

namespace cadre {

// An error without ErrorInfo gets one with the code's name as reason, so that
// every error a client sees has a reason.
grpc::Status ToGrpcStatus(const absl::Status& status);

absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_GRPC_STATUS_H_
