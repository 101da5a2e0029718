// adapter_config.json of PEFT, its regular expressions included.

#include "model/peft_config.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(adapter_config) {
  const auto config = PeftConfig::Parse(input);
  if (!config.ok()) return;
  for (const char* path :
       {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.experts",
        "model.layers.3.mlp.experts.down_proj", ""}) {
    config->TargetsModule(path);
    config->TargetsParameter(path);
    FUZZ_CHECK(config->RankOf(path) > 0);
    config->AlphaOf(path);
  }
  config->HasFusedLayoutOfToday();
}

}  // namespace cadre
