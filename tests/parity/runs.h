#ifndef CADRE_TESTS_PARITY_RUNS_H_
#define CADRE_TESTS_PARITY_RUNS_H_

// What a parity run compares, on the code that production jobs run.

#include <string>

#include "absl/status/status.h"
#include "model/model_dir.h"
#include "tests/parity/golden.h"
#include "tests/parity/report.h"

namespace cadre::parity {

struct RunOptions {
  int cpu_threads = 1;
  bool activation_checkpointing = false;
  std::string scratch_dir;  // for adapters written by the run
};

// Logits, hidden states, router logits, losses.
absl::Status CompareForward(const Golden& golden, const ModelDir& dir,
                            const RunOptions& options, Report* report);
// A checkpoint loaded and written: same names, shapes and bytes. Takes some
// room in scratch_dir.
absl::Status CompareExport(const ModelDir& dir, const RunOptions& options,
                           Report* report);
// Gradients of every parameter and the trajectory of full fine-tuning.
absl::Status CompareFull(const Golden& golden, const ModelDir& dir,
                         const RunOptions& options, Report* report);
// Adapter lora_RUN_init: written back unchanged, gradients, trajectory, and
// what six steps made of it against lora_RUN_final.
absl::Status CompareLora(const Golden& golden, const ModelDir& dir,
                         const std::string& run, const RunOptions& options,
                         Report* report);

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_RUNS_H_
