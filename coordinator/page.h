#ifndef CADRE_COORDINATOR_PAGE_H_
#define CADRE_COORDINATOR_PAGE_H_

// Pages and filters of list calls. Pure; thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cadre/v1/job.pb.h"
#include "cadre/v1/job_service.pb.h"
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

// Comparisons joined by AND over state, owner, priority, label.K, create_time
// and queue_reason, for example
//   state = RUNNING AND priority >= 50 AND label.team = "nlp"
class JobFilter {
 public:
  // FILTER_INVALID with the column of the problem.
  static absl::StatusOr<JobFilter> Parse(absl::string_view text);
  bool Matches(const v1::Job& job) const;

 private:
  enum class Op { kEq, kNe, kLt, kLe, kGt, kGe };
  struct Term {
    std::string field;
    Op op = Op::kEq;
    std::string value;
    int64_t number = 0;  // of state, priority; nanoseconds of create_time
  };
  std::vector<Term> terms_;
};

// ListJobs over the committed jobs: newest first, keyset pages.
absl::StatusOr<v1::ListJobsResponse> ListJobs(
    const JobTable& table, const v1::ListJobsRequest& request);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_PAGE_H_
