#ifndef CADRE_COORDINATOR_CALLER_H_
#define CADRE_COORDINATOR_CALLER_H_

// Who calls, as far as the transport could prove it. A value; thread-safe.

#include <string>

namespace cadre::coordinator {

// Each role includes those before it, but for kWorker, which may only Sync.
enum class Role { kNone, kViewer, kSubmitter, kAdmin, kWorker };

struct Caller {
  // "local" without authentication; of a worker the host it speaks for,
  // "*.example" for all below example.
  std::string principal;
  Role role = Role::kNone;
  std::string peer;  // "ipv4:127.0.0.1:41234"
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_CALLER_H_
