#ifndef CADRE_PLAN_PATH_ROOTS_H_
#define CADRE_PLAN_PATH_ROOTS_H_

// Whether paths that callers send stay where they may. Looks at the disk, for
// links; thread-safe.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cadre/v1/job_spec.pb.h"

namespace cadre {

// INVALID_ARGUMENT (PATH_OUTSIDE_ROOTS) unless the path, with all its links
// followed (one whose target is missing, too), is absolute and below one of the
// roots. A link that leads out is named with its target.
absl::Status CheckInside(const std::string& path,
                         const std::vector<std::string>& roots);

// The same for every path of a resolved job file, for the data files that its
// patterns match, and for what is read from its folders (configuration, index,
// shards, tokenizer, adapter): a link in a model folder is followed, as the
// snapshots of a Hugging Face cache need, as long as its target lies below a
// root. No roots: anywhere.
//
// It is a check, not a lock: whoever may write below a root can swap a link
// after it. The coordinator asks when a job is created, each rank again before
// it opens anything.
absl::Status CheckJobPaths(const v1::JobSpec& spec,
                           const std::vector<std::string>& roots);

}  // namespace cadre

#endif  // CADRE_PLAN_PATH_ROOTS_H_
