#ifndef CADRE_TESTS_PARITY_RUNS_H_
#define CADRE_TESTS_PARITY_RUNS_H_

// What a parity run compares, on the code that production jobs run.

#include <string>

#include "absl/status/status.h"
#include "kernels/common/dtype.h"
#include "kernels/common/exec.h"
#include "model/model_dir.h"
#include "tests/parity/golden.h"
#include "tests/parity/report.h"

namespace cadre::parity {

// Largest error accepted of each kind of quantity.
struct Tolerances {
  double forward, gradient, loss, trajectory_loss, trajectory_norm,
      final_adapter;
  // Forward quantities by norm instead of by largest element.
  bool forward_by_norm;
  // Experts and keys are those of a float32 model (guided_model.h); how often
  // the model would have chosen others is a quantity of its own.
  bool guided = false;
  double other_experts = 0, other_keys = 0;  // shares
};
// models.md section 7.
inline constexpr Tolerances kF32Tolerances{.forward = 1e-5,
                                           .gradient = 1e-4,
                                           .loss = 1e-5,
                                           .trajectory_loss = 2e-4,
                                           .trajectory_norm = 1e-3,
                                           .final_adapter = 1e-3,
                                           .forward_by_norm = false};
// bf16 activations and weights: docs/parity.md.
inline constexpr Tolerances kBf16Tolerances{.forward = 0.05,
                                            .gradient = 0.2,
                                            .loss = 0.002,
                                            .trajectory_loss = 0.02,
                                            .trajectory_norm = 0.08,
                                            .final_adapter = 0.1,
                                            .forward_by_norm = true,
                                            .guided = true,
                                            .other_experts = 0.1,
                                            .other_keys = 0.1};

struct RunOptions {
  // The GPU's; CPU: every run makes its own with `cpu_threads`.
  Exec exec;
  DType dtype = DType::kF32;
  Tolerances tolerances = kF32Tolerances;
  int cpu_threads = 1;
  int replayed_blocks = 0;
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
