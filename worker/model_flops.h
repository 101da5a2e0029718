#ifndef CADRE_WORKER_MODEL_FLOPS_H_
#define CADRE_WORKER_MODEL_FLOPS_H_

// The work that a training step must do, whatever the engine does for it: the
// numerator of model FLOPs utilisation. Pure; thread-safe.

#include "model/model_spec.h"
#include "worker/train/trainer_options.h"

namespace cadre {

// FLOPs of one token: 2 for each parameter that meets it in the forward pass, 2
// more for its input's gradient, 2 more for its own where it is trained. Of the
// routed experts top_k of E meet a token; the embedding is looked up, not
// multiplied. Attention scores and recompute are left out. 0 where the LoRA
// targets do not fit the model.
double ModelFlopsPerToken(const ModelSpec& spec, const TuningOptions& tuning);

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_FLOPS_H_
