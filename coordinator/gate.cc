#include "coordinator/gate.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/server_context.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/proto_file.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"

namespace cadre::coordinator {
namespace {

// How often a change of the access file is looked for.
constexpr absl::Duration kLookInterval = absl::Seconds(1);

const char* RoleName(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kSubmitter:
      return "submitter";
    case Role::kAdmin:
      return "admin";
    case Role::kWorker:
      return "worker";
    case Role::kNone:
      break;
  }
  return "none";
}

absl::StatusOr<AccessList> ReadList(const std::string& path) {
  config::v1::AccessList config;
  CADRE_RETURN_IF_ERROR(ReadTextProto(path, &config));
  return AccessList::Make(config);
}

int64_t ModifiedNs(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

}  // namespace

Role RoleFor(const std::string& method) {
  static const auto* const kRoles = new std::map<std::string, Role>{
      {"CreateJob", Role::kSubmitter},
      {"PlanJob", Role::kViewer},
      {"GetJob", Role::kViewer},
      {"ListJobs", Role::kViewer},
      {"WatchJob", Role::kViewer},
      {"CancelJob", Role::kSubmitter},
      {"PauseJob", Role::kSubmitter},
      {"ResumeJob", Role::kSubmitter},
      {"DeleteJob", Role::kSubmitter},
      {"RebalanceExperts", Role::kSubmitter},
      {"GetPlan", Role::kViewer},
      {"ListCheckpoints", Role::kViewer},
      {"ListArtifacts", Role::kViewer},
      {"DownloadArtifact", Role::kSubmitter},
      {"GetMetrics", Role::kViewer},
      {"GetExpertLoads", Role::kViewer},
      {"ListWorkers", Role::kViewer},
      {"Cordon", Role::kAdmin},
      {"Uncordon", Role::kAdmin},
      {"Drain", Role::kAdmin},
      {"BackupState", Role::kAdmin},
      {"PurgeJobs", Role::kAdmin},
      {"ListAuditRecords", Role::kAdmin},
      {"Sync", Role::kWorker},
  };
  const auto it = kRoles->find(method);
  return it == kRoles->end() ? Role::kNone : it->second;
}

absl::Status CheckRole(const Caller& caller, const std::string& method) {
  const Role need = RoleFor(method);
  if (need == Role::kNone) {
    return Error(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
                 absl::StrCat("no role may call ", method));
  }
  const bool enough = need == Role::kWorker || caller.role == Role::kWorker
                          ? need == caller.role
                          : caller.role >= need;
  if (enough) return absl::OkStatus();
  return Error(absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
               absl::StrCat(method, " needs the role ", RoleName(need), ", ",
                            caller.principal, " has ", RoleName(caller.role)));
}

absl::StatusOr<std::unique_ptr<Gate>> Gate::Open(const Options& options) {
  auto gate = std::unique_ptr<Gate>(new Gate(options));
  if (options.access_file.empty()) return gate;
  CADRE_ASSIGN_OR_RETURN(AccessList list, ReadList(options.access_file));
  absl::MutexLock lock(&gate->mutex_);
  gate->list_ = std::make_shared<const AccessList>(std::move(list));
  gate->list_mtime_ns_ = ModifiedNs(options.access_file);
  gate->looked_ = options.clock->Monotonic();
  return gate;
}

std::shared_ptr<const AccessList> Gate::CurrentList() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  if (now - looked_ < kLookInterval) return list_;
  looked_ = now;
  const int64_t mtime = ModifiedNs(options_.access_file);
  if (mtime == list_mtime_ns_) return list_;
  list_mtime_ns_ = mtime;
  auto list = ReadList(options_.access_file);
  if (list.ok()) {
    list_ = std::make_shared<const AccessList>(*std::move(list));
    CADRE_LOG(INFO) << "access list: read again";
  } else {
    CADRE_LOG(ERROR) << "access list: the former one stays: "
                     << list.status().ToString();
  }
  return list_;
}

absl::StatusOr<Caller> Gate::Authenticate(
    const grpc::ServerContextBase& context) {
  const std::shared_ptr<const AccessList> list = CurrentList();
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find("authorization");
  if (header != metadata.end()) {
    absl::string_view value(header->second.data(), header->second.size());
    std::optional<Caller> caller;
    if (absl::ConsumePrefix(&value, "Bearer ")) caller = list->ByToken(value);
    if (caller.has_value()) return *caller;
    return Error(absl::StatusCode::kUnauthenticated, "TOKEN_INVALID",
                 "the token is not one of the coordinator's access list; ask "
                 "its operator for one");
  }
  const auto peer = context.auth_context();
  if (peer != nullptr && peer->IsPeerAuthenticated()) {
    std::vector<std::string> names;
    for (const auto& name :
         peer->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
      names.emplace_back(name.data(), name.size());
    }
    if (auto caller = list->ByNames(names)) return *caller;
    return Error(
        absl::StatusCode::kPermissionDenied, "ROLE_REQUIRED",
        absl::StrCat("no entry of the access list fits the certificate's "
                     "names: ",
                     absl::StrJoin(names, ", ")));
  }
  return Error(absl::StatusCode::kUnauthenticated, "TOKEN_MISSING",
               "this coordinator wants to know who calls: name a file with a "
               "token (--token-file) or a certificate (--cert, --key)");
}

absl::Status Gate::TakeToken(const std::string& principal) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration now = options_.clock->Monotonic();
  const auto [it, fresh] = buckets_.try_emplace(
      principal, Bucket{.tokens = options_.burst, .filled = now});
  Bucket& bucket = it->second;
  bucket.tokens =
      std::min(options_.burst,
               bucket.tokens + options_.calls_per_second *
                                   absl::ToDoubleSeconds(now - bucket.filled));
  bucket.filled = now;
  if (bucket.tokens >= 1) {
    bucket.tokens -= 1;
    return absl::OkStatus();
  }
  const absl::Duration wait =
      absl::Seconds((1 - bucket.tokens) / options_.calls_per_second);
  return WithRetry(
      Error(absl::StatusCode::kResourceExhausted, "RATE_LIMITED",
            absl::StrCat(principal, " may make ", options_.calls_per_second,
                         " calls a second after a burst of ", options_.burst,
                         "; retry in ", absl::FormatDuration(wait))),
      wait);
}

absl::StatusOr<Caller> Gate::Admit(const grpc::ServerContextBase& context,
                                   const std::string& method) {
  Caller caller{.peer = context.peer()};
  if (options_.access_file.empty()) {
    caller.principal = "local";
    caller.role = Role::kAdmin;
    return caller;
  }
  absl::StatusOr<Caller> known = Authenticate(context);
  absl::Status status = known.status();
  if (status.ok()) {
    caller.principal = known->principal;
    caller.role = known->role;
    status = CheckRole(caller, method);
  }
  if (!status.ok()) {
    Deny(caller, method, status);
    return status;
  }
  // A worker calls as often as it is told to.
  if (caller.role != Role::kWorker) {
    CADRE_RETURN_IF_ERROR(TakeToken(caller.principal));
  }
  return caller;
}

void Gate::Deny(const Caller& caller, const std::string& method,
                const absl::Status& status) {
  CADRE_LOG(WARNING) << "refused: " << method << " by '" << caller.principal
                     << "' from " << caller.peer << ": " << ErrorReason(status);
  if (options_.on_denial) {
    options_.on_denial(caller, method, ErrorReason(status));
  }
}

}  // namespace cadre::coordinator
