#ifndef CADRE_COORDINATOR_PAGE_H_
#define CADRE_COORDINATOR_PAGE_H_

// Pages and filters of list calls. Pure; thread-safe.

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cadre/v1/job.pb.h"
#include "cadre/v1/job_service.pb.h"
#include "coordinator/filter.h"
#include "coordinator/job_table.h"

namespace cadre::coordinator {

// The page size in force: 50 unless set, at most 1000. INVALID_ARGUMENT below
// 0.
absl::StatusOr<int> PageSize(int32_t requested);

// A token is opaque, and bound to the query it came from. PAGE_TOKEN_INVALID
// when it is of another.
std::string MakePageToken(absl::string_view position, absl::string_view query);
absl::StatusOr<std::string> ReadPageToken(absl::string_view token,
                                          absl::string_view query);

// What jobs can be filtered by: state, owner, priority, label.K, create_time,
// queue_reason.
class JobFilter {
 public:
  // FILTER_INVALID with the column of the problem.
  static absl::StatusOr<JobFilter> Parse(absl::string_view text);
  bool Matches(const v1::Job& job) const;

 private:
  explicit JobFilter(Filter filter) : filter_(std::move(filter)) {}
  Filter filter_;
};

// ListJobs over the committed jobs, in keyset pages: a job made meanwhile
// shifts none.
absl::StatusOr<v1::ListJobsResponse> ListJobs(
    const JobTable& table, const v1::ListJobsRequest& request);

// Committed checkpoints of a job, newest first. JOB_NOT_FOUND.
absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
    const JobTable& table, const v1::ListCheckpointsRequest& request);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_PAGE_H_
