#include "coordinator/api_error.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/rpc/error.h"
#include "google/rpc/error_details.pb.h"

namespace cadre::coordinator {

absl::Status CheckOwner(const Caller& caller, const v1::Job& job) {
  if (caller.role == Role::kAdmin || caller.principal == job.owner()) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kPermissionDenied, "NOT_OWNER",
               absl::StrCat(job.name(), " belongs to ", job.owner(),
                            "; only its owner and operators may change it"));
}

absl::Status Taken(const char* reason, const std::string& job,
                   const std::string& message) {
  absl::Status status =
      Error(absl::StatusCode::kAlreadyExists, reason, message);
  google::rpc::ResourceInfo info;
  info.set_resource_type("cadre.v1.Job");
  info.set_resource_name(absl::StrCat("jobs/", job));
  AddDetail(info, &status);
  return status;
}

absl::Status NotFound(const char* reason, const char* type,
                      const std::string& name, const std::string& message) {
  absl::Status status = Error(absl::StatusCode::kNotFound, reason, message);
  google::rpc::ResourceInfo info;
  info.set_resource_type(type);
  info.set_resource_name(name);
  AddDetail(info, &status);
  return status;
}

absl::Status NoSuchJob(const std::string& name) {
  return NotFound(
      "JOB_NOT_FOUND", "cadre.v1.Job", name,
      absl::StrCat("there is no job '", name, "'; 'cadre list' shows all"));
}

absl::Status ShuttingDown() {
  return WithRetry(Error(absl::StatusCode::kUnavailable, "DRAINING",
                         "the coordinator is shutting down; retry"),
                   absl::Seconds(1));
}

absl::Status Refusal(const char* reason, const v1::Diagnostics& diagnostics) {
  int64_t errors = 0;
  const v1::Diagnostic* first = nullptr;
  google::rpc::BadRequest bad;
  for (const v1::Diagnostic& item : diagnostics.items()) {
    if (item.severity() != v1::Diagnostic::SEVERITY_ERROR) continue;
    ++errors;
    if (first == nullptr) first = &item;
    auto* violation = bad.add_field_violations();
    violation->set_field(item.field());
    std::string text;
    if (item.line() > 0) {
      text =
          absl::StrFormat("line %d, column %d: ", item.line(), item.column());
    }
    if (!item.file().empty()) text = absl::StrCat(item.file(), ", ", text);
    absl::StrAppend(&text, item.message());
    if (!item.hint().empty()) absl::StrAppend(&text, "; ", item.hint());
    violation->set_description(text);
  }
  std::string message = absl::StrCat(
      errors, errors == 1 ? " problem: " : " problems, the first: ");
  if (first != nullptr) {
    if (!first->field().empty())
      absl::StrAppend(&message, first->field(), ": ");
    absl::StrAppend(&message, bad.field_violations(0).description());
  }
  absl::Status status =
      Error(absl::StatusCode::kInvalidArgument, reason, message);
  AddDetail(bad, &status);
  AddDetail(diagnostics, &status);
  return status;
}

}  // namespace cadre::coordinator
