#ifndef CADRE_MODEL_PARSERS_KIMI_H_
#define CADRE_MODEL_PARSERS_KIMI_H_

// What kimi_linear and kimi_k3 share: which layers are KDA, and its sizes.

#include <cstdint>
#include <vector>

#include "model/json_config.h"
#include "model/model_spec.h"

namespace cadre {

// layer_types, else the 1-indexed lists of linear_attn_config, else every layer
// but 4, 8, 12, ... (with a warning).
std::vector<bool> ReadKimiKdaLayers(JsonConfig& config, size_t num_layers);

// linear_attn_config wins over the linear_* fields. Gates are left alone.
KdaSpec ReadKimiKda(JsonConfig& config, int64_t num_heads, int64_t head_dim);

}  // namespace cadre

#endif  // CADRE_MODEL_PARSERS_KIMI_H_
