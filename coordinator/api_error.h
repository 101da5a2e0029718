#ifndef CADRE_COORDINATOR_API_ERROR_H_
#define CADRE_COORDINATOR_API_ERROR_H_

// Errors that several RPCs answer, with their details. Pure; thread-safe.

#include <string>

#include "absl/status/status.h"
#include "cadre/v1/diagnostics.pb.h"
#include "cadre/v1/job.pb.h"
#include "coordinator/caller.h"

namespace cadre::coordinator {

// NOT_FOUND, JOB_NOT_FOUND. `name` as the caller wrote it.
absl::Status NoSuchJob(const std::string& name);

// NOT_FOUND with ResourceInfo of the given type ("cadre.v1.Worker").
absl::Status NotFound(const char* reason, const char* type,
                      const std::string& name, const std::string& message);

// PERMISSION_DENIED (NOT_OWNER) unless the job is the caller's, or the caller
// is an operator.
absl::Status CheckOwner(const Caller& caller, const v1::Job& job);

// ALREADY_EXISTS with the job (its id) that was first.
absl::Status Taken(const char* reason, const std::string& job,
                   const std::string& message);

// UNAVAILABLE (DRAINING), to be repeated in a second.
absl::Status ShuttingDown();

// INVALID_ARGUMENT with every finding, the errors also as BadRequest.
absl::Status Refusal(const char* reason, const v1::Diagnostics& diagnostics);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_API_ERROR_H_
