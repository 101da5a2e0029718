#include "absl/strings/str_cat.h"
#include "model/parsers/kimi.h"
#include "model/parsers/parsers.h"

namespace cadre {

std::vector<bool> ReadKimiKdaLayers(JsonConfig& config, size_t num_layers) {
  JsonConfig linear = config.Object("linear_attn_config");
  linear.Ignore({"head_dim", "num_heads", "short_conv_kernel_size",
                 "gate_lower_bound", "use_full_rank_gate", "safe_gate"});
  const auto full = linear.Ints("full_attn_layers");
  const auto kda = linear.Ints("kda_layers");
  linear.WarnAboutUnused();
  // 1-indexed; 'K', 'F' or 0 for "not named".
  std::vector<char> named(num_layers, 0);
  const auto mark = [&](const std::vector<int64_t>& layers, char kind,
                        const char* name) {
    for (int64_t layer : layers) {
      if (layer < 1 || layer > static_cast<int64_t>(num_layers)) {
        linear.Error(name, absl::StrCat("names layer ", layer,
                                        ", layers are 1 to ", num_layers));
      } else if (named[layer - 1] != 0) {
        linear.Error(name, absl::StrCat("names layer ", layer, " again"));
      } else {
        named[layer - 1] = kind;
      }
    }
  };
  const auto listed = ReadLayerList(config, "layer_types", {"linear_attention"},
                                    {"full_attention"}, num_layers);
  if (full) mark(*full, 'F', "full_attn_layers");
  if (kda) mark(*kda, 'K', "kda_layers");
  std::vector<bool> is_kda(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    if (full && kda && named[i] == 0) {
      linear.Error("kda_layers", absl::StrCat("and full_attn_layers both leave "
                                              "out layer ",
                                              i + 1));
    }
    // The list that is given decides for the layers it does not name.
    is_kda[i] = named[i] == 'K' || (named[i] == 0 && full.has_value());
    if (!full && !kda) is_kda[i] = i == 0 || i % 4 != 0;
  }
  if (listed) {
    if ((full || kda) && *listed != is_kda) {
      config.Warn(
          "layer_types and linear_attn_config name different layers; "
          "layer_types is used");
    }
    return *listed;
  }
  if (!full && !kda) {
    config.Warn(
        "neither layer_types nor linear_attn_config says which layers "
        "are full attention; layers 4, 8, 12, ... (from 0) are taken, "
        "which no published model uses");
  }
  return is_kda;
}

KdaSpec ReadKimiKda(JsonConfig& config, int64_t num_heads, int64_t head_dim) {
  KdaSpec kda;
  kda.num_heads = config.Int({"linear_num_heads"}, num_heads, 1, 1 << 14);
  kda.head_dim = config.Size({"linear_head_dim"}, head_dim);
  kda.conv_kernel = config.Int({"linear_conv_kernel_dim"}, 4, 1, 64);
  JsonConfig linear = config.Object("linear_attn_config");
  kda.num_heads = linear.Int({"num_heads"}, kda.num_heads, 1, 1 << 14);
  kda.head_dim = linear.Size({"head_dim"}, kda.head_dim);
  kda.conv_kernel =
      linear.Int({"short_conv_kernel_size"}, kda.conv_kernel, 1, 64);
  return kda;
}

void ParseKimiLinear(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 2304,
              .vocab_size = 163840,
              .num_layers = 27,
              .norm_eps = 1e-5},
             spec);
  const ActivationSpec activation = ReadSwiGlu(config);
  const KdaSpec kda = ReadKimiKda(config, 32, 128);
  JsonConfig linear = config.Object("linear_attn_config");
  linear.RequireZero("gate_lower_bound",
                     "kimi_linear has an unbounded decay gate");
  linear.RequireBool("use_full_rank_gate", false,
                     "kimi_linear has a low-rank output gate");
  const MlaSpec mla = ReadMla(config, {.num_heads = 32,
                                       .q_lora_rank = 0,
                                       .kv_lora_rank = 512,
                                       .qk_nope = 128,
                                       .qk_rope = 64,
                                       .v_dim = 128});
  config.RequireBool("mla_use_nope", true, "only unrotated MLA is supported");
  config.RequireBool("mla_use_output_gate", false,
                     "kimi_linear has no output gate on MLA");
  // Nothing is rotated, so rotary settings have no effect.
  config.Ignore({"rope_theta", "rope_scaling", "rope_parameters"});
  if (config.Int({"moe_layer_freq"}, 1, 1, 4096) != 1) {
    config.Error("moe_layer_freq", "must be 1 for this model type");
  }
  const DenseMlpSpec dense = {config.Size({"intermediate_size"}, 9216),
                              activation};
  const MoeSpec moe = ReadSigmoidMoe(
      config,
      {.num_experts = 256, .top_k = 8, .expert_width = 1024, .scaling = 2.446},
      activation);
  const size_t layers = spec.blocks.size();
  const std::vector<bool> is_kda = ReadKimiKdaLayers(config, layers);
  const std::vector<bool> is_moe = ReadSparseLayers(config, layers, 1);
  for (size_t i = 0; i < layers; ++i) {
    BlockSpec& block = spec.blocks[i];
    if (is_kda[i]) {
      block.mixer = kda;
    } else {
      block.mixer = mla;
    }
    if (is_moe[i]) {
      block.ffn = moe;
    } else {
      block.ffn = dense;
    }
  }
}

}  // namespace cadre
