#ifndef CADRE_COORDINATOR_DATA_CHECK_H_
#define CADRE_COORDINATOR_DATA_CHECK_H_

// How a job's data set is checked: the head when the job is created, the whole
// while it is VALIDATING. An interface, so that the control plane is tested
// without tokenizers; text_data_check.h is the one in use.

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/diagnostics.pb.h"
#include "cadre/v1/job.pb.h"
#include "cadre/v1/job_spec.pb.h"

namespace cadre::coordinator {

struct DataVerdict {
  // OK: good. INVALID_ARGUMENT: bad records or unusable files, listed in
  // diagnostics. CANCELLED: stopped by the flag.
  absl::Status status;
  v1::Diagnostics diagnostics;  // errors, then warnings
  // Of the whole check only.
  v1::TokenStats stats;
  int64_t rows = 0;  // rows of max_seq_len in one pass over the training data
  std::vector<state::v1::PinnedFile> files;
};

// Thread-safe. `spec` is resolved: absolute paths, defaults filled in.
class DataChecker {
 public:
  virtual ~DataChecker() = default;
  // What an RPC can afford; no stats.
  virtual DataVerdict CheckHead(const v1::JobSpec& spec) = 0;
  // CANCELLED soon after the flag is set by another thread.
  virtual DataVerdict CheckWhole(const v1::JobSpec& spec,
                                 const std::atomic<bool>* cancelled) = 0;
};

// Optimizer steps of the job for that many rows, and steps of one pass.
int64_t TotalSteps(const v1::JobSpec& spec, int64_t rows);
int64_t StepsPerEpoch(const v1::JobSpec& spec, int64_t rows);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_DATA_CHECK_H_
