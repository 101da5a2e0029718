// A job as it comes over the wire: any message gets a verdict.

#include <google/protobuf/stubs/logging.h>

#include "cadre/v1/job_spec.pb.h"
#include "plan/validate.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(job) {
  // Protobuf reports each string that is not UTF-8 on stderr.
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(quiet);
  v1::JobSpec spec;
  if (!spec.ParseFromArray(input.data(), static_cast<int>(input.size()))) {
    return;
  }
  const Validated once = ValidateJob(spec, {.base_dir = "/jobs"}, nullptr);
  if (!once.ok()) return;
  // Its own result is a job again: what a restart reads from the journal.
  const Validated twice = ValidateJob(once.spec, {}, nullptr);
  FUZZ_CHECK(twice.ok());
}

}  // namespace cadre
