#ifndef CADRE_COORDINATOR_ACCESS_LIST_H_
#define CADRE_COORDINATOR_ACCESS_LIST_H_

// Who is known, by token or by certificate, and what they may do. Immutable;
// thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cadre/config/v1/coordinator.pb.h"
#include "coordinator/caller.h"

namespace cadre::coordinator {

class AccessList {
 public:
  // INVALID_ARGUMENT names the entry: no name, no role, a digest that is none,
  // a name or a digest twice.
  static absl::StatusOr<AccessList> Make(const config::v1::AccessList& config);

  // nullopt: not known. Takes the same time for every token.
  std::optional<Caller> ByToken(absl::string_view token) const;
  // The first entry that one of the names of a certificate matches.
  std::optional<Caller> ByNames(const std::vector<std::string>& names) const;

 private:
  struct Entry {
    std::string name;
    Role role = Role::kNone;
    std::string digest;  // 32 bytes; of a token
  };
  std::vector<Entry> tokens_;
  std::vector<Entry> certificates_;
};

// Whether `name` is `pattern`, or below it where it is "*.suffix".
bool NameMatches(absl::string_view pattern, absl::string_view name);

// WORKER_ID_MISMATCH unless the caller may speak for the worker: its host is
// the caller's name. Without authentication everybody may.
absl::Status CheckWorkerId(const Caller& caller, const std::string& worker_id);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ACCESS_LIST_H_
