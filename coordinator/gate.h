#ifndef CADRE_COORDINATOR_GATE_H_
#define CADRE_COORDINATOR_GATE_H_

// Who may call what, how often. Every RPC but health passes here first; a
// method that is not in the table is open to nobody. Thread-safe.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "coordinator/access_list.h"
#include "coordinator/caller.h"

namespace grpc {
class ServerContextBase;
}

namespace cadre::coordinator {

// The lowest role that may call a method ("CreateJob"); kNone: no such method.
Role RoleFor(const std::string& method);

// PERMISSION_DENIED (ROLE_REQUIRED) unless the caller's role is enough.
absl::Status CheckRole(const Caller& caller, const std::string& method);

class Gate {
 public:
  struct Options {
    Clock* clock = nullptr;
    // Empty: everybody is "local" and may do everything, without limits.
    std::string access_file;
    double calls_per_second = 20;
    double burst = 200;
    std::function<void(const Caller&, const std::string& method,
                       const std::string& reason)>
        on_denial;
  };
  // INVALID_ARGUMENT or NOT_FOUND: the access file.
  static absl::StatusOr<std::unique_ptr<Gate>> Open(const Options& options);

  absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context,
                               const std::string& method);
  // For checks behind the door; notes the denial.
  void Deny(const Caller& caller, const std::string& method,
            const absl::Status& status);

 private:
  explicit Gate(const Options& options) : options_(options) {}
  absl::StatusOr<Caller> Authenticate(const grpc::ServerContextBase& context);
  // Reads the access file again if it has changed. A bad one is logged and the
  // former list stays.
  std::shared_ptr<const AccessList> CurrentList();
  absl::Status TakeToken(const std::string& principal);

  struct Bucket {
    double tokens = 0;
    absl::Duration filled;
  };
  const Options options_;
  absl::Mutex mutex_;
  std::shared_ptr<const AccessList> list_ ABSL_GUARDED_BY(mutex_);
  int64_t list_mtime_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_GATE_H_
