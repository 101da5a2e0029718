#ifndef CADRE_PLAN_MODEL_FACTS_H_
#define CADRE_PLAN_MODEL_FACTS_H_

// What a plan needs to know of the base model's files. Reads headers only;
// thread-safe.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cadre/v1/job_spec.pb.h"
#include "model/model_spec.h"

namespace cadre {

struct ModelFacts {
  // Set when config.json could be read and is supported.
  std::optional<ModelSpec> spec;
  // Why the model cannot be used; OK: it can.
  absl::Status status;
  // A tokenizer.json is there, and where it was looked for.
  bool has_tokenizer = false;
  std::string tokenizer_dir;
  int64_t total_parameters = 0;
  std::string fingerprint;  // of the weights; empty with init: random
};

// `spec` has absolute paths.
ModelFacts LoadModelFacts(const v1::ModelSpec& spec);

}  // namespace cadre

#endif  // CADRE_PLAN_MODEL_FACTS_H_
