#include "coordinator/gate.h"

#include <grpcpp/server_context.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"

namespace cadre::coordinator {

Role RoleFor(const std::string& method) {
  static const auto* const kRoles = new std::map<std::string, Role>{
      {"CreateJob", Role::kSubmitter},
      {"GetJob", Role::kViewer},
      {"ListJobs", Role::kViewer},
      {"WatchJob", Role::kViewer},
      {"CancelJob", Role::kSubmitter},
      {"PauseJob", Role::kSubmitter},
      {"ResumeJob", Role::kSubmitter},
      {"DeleteJob", Role::kSubmitter},
      {"GetPlan", Role::kViewer},
      {"ListCheckpoints", Role::kViewer},
      {"ListArtifacts", Role::kViewer},
      {"GetMetrics", Role::kViewer},
      {"GetExpertLoads", Role::kViewer},
      {"ListWorkers", Role::kViewer},
      {"Cordon", Role::kAdmin},
      {"Uncordon", Role::kAdmin},
      {"Drain", Role::kAdmin},
      {"BackupState", Role::kAdmin},
      {"ListAuditRecords", Role::kAdmin},
      {"Sync", Role::kWorker},
  };
  const auto it = kRoles->find(method);
  return it == kRoles->end() ? Role::kNone : it->second;
}

absl::StatusOr<Caller> Gate::Admit(const grpc::ServerContextBase& context,
                                   const std::string& method) const {
  if (RoleFor(method) == Role::kNone) {
    return Error(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
                 absl::StrCat("no role may call ", method));
  }
  return Caller{
      .principal = "local", .role = Role::kAdmin, .peer = context.peer()};
}

}  // namespace cadre::coordinator
