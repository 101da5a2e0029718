// config.json of a model.

#include "model/model_spec.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(model_config) {
  const auto spec = ParseModelSpec(input);
  if (!spec.ok()) FUZZ_CHECK(!spec.status().message().empty());
}

}  // namespace cadre
