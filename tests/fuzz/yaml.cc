// A job file: YAML to JobSpec to its verdict.

#include "base/config/yaml_proto.h"
#include "cadre/v1/job_spec.pb.h"
#include "plan/validate.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(yaml) {
  v1::JobSpec spec;
  YamlMarks marks;
  v1::Diagnostics diagnostics;
  const bool ok = ParseYaml(input, &spec, &marks, &diagnostics);
  FUZZ_CHECK(ok == diagnostics.items().empty());
  PlaceDiagnostics(marks, 50, &diagnostics);
  FUZZ_CHECK(diagnostics.items_size() <= 50);
  if (ok) ValidateJob(spec, {.base_dir = "/jobs"}, nullptr);
}

}  // namespace cadre
