#ifndef CADRE_WORKER_MODEL_TINY_MODELS_H_
#define CADRE_WORKER_MODEL_TINY_MODELS_H_

// Models of a few thousand weights for tests of the runtime: one for each
// combination of parts that an architecture of models.md uses. Sizes are
// pairwise different where they may be, so that a mixed-up dimension shows.
// Test-only; plain functions.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "model/model_spec.h"
#include "worker/model/batch.h"
#include "worker/model/model.h"

namespace cadre::testing {

struct TinyModel {
  std::string name;  // fit for a test's name
  ModelSpec spec;
};
// For GoogleTest's messages.
inline void PrintTo(const TinyModel& model, std::ostream* os) {
  *os << model.name;
}

std::vector<TinyModel> TinyModels();
// CADRE_CHECKs that there is one.
ModelSpec TinyModelNamed(const std::string& name);

// Fills every parameter, adapters included: matrices so that activations keep
// their size, norms about one, decays and biases spread. A tensor's values
// depend on the seed and its name only.
void Randomize(Model* model, uint64_t seed);

// Documents of the given lengths with random tokens, each predicting its own
// next token (the last token of a document predicts nothing), then `padding`
// tokens. Document d depends on the seed and d only.
Batch RandomBatch(const ModelSpec& spec, const std::vector<int>& lengths,
                  int padding, uint64_t seed);

// The coefficient of the auxiliary loss; 0: the model has none.
double AuxCoefficient(const ModelSpec& spec);

// An element of an f32 or f64 tensor.
double At(const Tensor& t, int64_t i);

// One adapter on everything that can have one: each Linear, the router and the
// routed experts.
LoraOptions AdaptEverything();

}  // namespace cadre::testing

#endif  // CADRE_WORKER_MODEL_TINY_MODELS_H_
