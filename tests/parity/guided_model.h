#ifndef CADRE_TESTS_PARITY_GUIDED_MODEL_H_
#define CADRE_TESTS_PARITY_GUIDED_MODEL_H_

// A model of a comparison, and beside it, where rounding could make it choose
// other experts or keys than the fixture, a float32 model on the CPU that the
// choices come from: the guide agrees with the fixture to 1e-5, so that it
// chooses as the fixture did.

#include <memory>

#include "model/lora_targets.h"
#include "model/model_dir.h"
#include "tests/parity/report.h"
#include "tests/parity/runs.h"
#include "worker/model/model.h"
#include "worker/model/selections.h"

namespace cadre::parity {

struct GuidedModel {
  Exec exec;
  // Of the models, which are declared behind them.
  std::unique_ptr<Selections> selections, guide_selections;
  std::unique_ptr<Model> model;
  std::unique_ptr<Model> guide;  // null: the model chooses for itself

  // What the guide chose in its last pass, from the next pass on.
  void TakeChoices() { selections->Give(guide_selections->choices()); }
};

// With a guide if options.tolerances say so.
absl::StatusOr<GuidedModel> LoadModel(const ModelDir& dir, const Exec& exec,
                                      const RunOptions& options,
                                      const LoraPlan* lora);

// Share of experts, and of keys, that `ours` chose and `theirs` did not.
void CompareChoices(const Selections& ours, const Selections& theirs,
                    const Tolerances& tolerances, Report* report);

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_GUIDED_MODEL_H_
