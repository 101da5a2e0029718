#ifndef CADRE_TESTS_PARITY_MESH_RUN_H_
#define CADRE_TESTS_PARITY_MESH_RUN_H_

// Training on several ranks against the fixture and against one rank. The ranks
// are threads with a Gloo connection each; what they run is what a job's
// workers run (worker/train/train_step.h). The sequences of the fixture are
// dealt out to the ranks; some may get none.

#include <string>

#include "absl/status/status.h"
#include "model/model_dir.h"
#include "plan/mesh.h"
#include "tests/parity/golden.h"
#include "tests/parity/report.h"
#include "tests/parity/runs.h"

namespace cadre::parity {

// Full fine-tuning: gradients, norm and trajectory. A mesh of one rank compares
// nothing.
absl::Status CompareFullOnMesh(const Golden& golden, const ModelDir& dir,
                               const MeshSpec& mesh, const RunOptions& options,
                               Report* report);
// Adapter lora_RUN_init: the same, and the adapter after the last step.
absl::Status CompareLoraOnMesh(const Golden& golden, const ModelDir& dir,
                               const std::string& run, const MeshSpec& mesh,
                               const RunOptions& options, Report* report);

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_MESH_RUN_H_
