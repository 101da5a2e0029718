#ifndef CADRE_COORDINATOR_GATE_H_
#define CADRE_COORDINATOR_GATE_H_

// Who may call what. Every RPC passes here first; a method that is not in the
// table is open to nobody. Thread-safe.

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/caller.h"

namespace grpc {
class ServerContextBase;
}

namespace cadre::coordinator {

// The lowest role that may call a method ("CreateJob"); kNone: no such method.
Role RoleFor(const std::string& method);

class Gate {
 public:
  // Plaintext on loopback: everybody is "local" and may do everything.
  Gate() = default;

  absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context,
                               const std::string& method) const;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_GATE_H_
