#ifndef CADRE_COORDINATOR_PATH_ROOTS_H_
#define CADRE_COORDINATOR_PATH_ROOTS_H_

// Whether paths that callers send stay where they may. Looks at the disk, for
// links; thread-safe.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cadre/v1/job_spec.pb.h"

namespace cadre::coordinator {

// INVALID_ARGUMENT (PATH_OUTSIDE_ROOTS) unless the path, with all its links
// followed, is absolute and below one of the roots.
absl::Status CheckInside(const std::string& path,
                         const std::vector<std::string>& roots);

// The same for every path of a resolved job file; no roots: anywhere.
absl::Status CheckJobPaths(const v1::JobSpec& spec,
                           const std::vector<std::string>& roots);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_PATH_ROOTS_H_
