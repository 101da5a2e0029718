#ifndef CADRE_PLAN_VALIDATE_H_
#define CADRE_PLAN_VALIDATE_H_

// From a job file to what will run: every limit checked in one pass, every
// default filled in, the layout planned. Pure: what depends on files is handed
// in (plan/model_facts.h). Thread-safe.
//
//   Validated v = ValidateJob(spec, {.base_dir = "/home/me/jobs"}, &facts);
//   if (!v.ok()) ... v.diagnostics has a field path per problem ...

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cadre/v1/diagnostics.pb.h"
#include "cadre/v1/job_spec.pb.h"
#include "cadre/v1/plan.pb.h"
#include "plan/layout.h"
#include "plan/model_facts.h"

namespace cadre {

struct ValidateOptions {
  // Where relative paths start; "": they are refused.
  std::string base_dir;
  // Paths must lie below one of these; empty: anywhere.
  std::vector<std::string> allowed_roots;
  // What the workers have, where the job file does not say; 0: a guess. Unless
  // it is the guess, a job that needs more is refused.
  int64_t device_memory_bytes = 0;
  // Ranks of one link domain; 0: unknown.
  int link_domain_size = 0;
  // A layout that needs more memory than there is is no error: the one with
  // the least memory is planned.
  bool memory_is_advice = false;
  bool list_layouts = false;
};

struct Validated {
  // All defaults filled in, paths absolute.
  v1::JobSpec spec;
  // total_steps is 0 while it depends on the data set.
  v1::Plan plan;
  // Errors and warnings, in the order of the job file's fields.
  v1::Diagnostics diagnostics;
  // Where resources.min_workers allows fewer workers: the plan for every number
  // of them that the layout and the batch allow, largest first. total_steps as
  // in `plan`.
  std::vector<v1::Plan> smaller;
  // With list_layouts: as plan/layout.h lists them.
  std::vector<Layout> layouts;
  int64_t rank_bytes = 0;  // what they were made for; 0: nothing was planned
  bool ok() const;
};

// facts null: the model's files are not looked at, and neither LoRA targets nor
// the model's own limits are checked.
Validated ValidateJob(const v1::JobSpec& spec, const ValidateOptions& options,
                      const ModelFacts* facts);

// Fills in the defaults and makes the paths absolute, without judging.
v1::JobSpec ResolveJob(const v1::JobSpec& spec, const std::string& base_dir);

}  // namespace cadre

#endif  // CADRE_PLAN_VALIDATE_H_
