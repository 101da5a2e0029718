#ifndef CADRE_WORKER_COMM_LOCAL_ADDRESS_H_
#define CADRE_WORKER_COMM_LOCAL_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace cadre {

// The numeric address of this machine that `host` (a name or an address, "":
// this machine's name) stands for, proved by binding a socket to it.
// INVALID_ARGUMENT when it does not resolve or belongs to another machine.
absl::StatusOr<std::string> LocalAddress(const std::string& host);

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_LOCAL_ADDRESS_H_
