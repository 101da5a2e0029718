#include "absl/strings/str_cat.h"
#include "model/parsers/kimi.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

ActivationSpec ReadSiTu(JsonConfig& config) {
  config.RequireString("hidden_act", "situ", "supported is \"situ\"");
  ActivationSpec activation;
  activation.kind = ActivationSpec::Kind::kSiTu;
  activation.beta = config.Number({"activation_situ_beta"}, 4.0, 1e-3, 1e6);
  activation.linear_beta =
      config.Number({"activation_situ_linear_beta"}, 25.0, 1e-3, 1e6);
  return activation;
}

}  // namespace

void ParseKimiK3(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 7168,
              .vocab_size = 163840,
              .num_layers = 93,
              .norm_eps = 1e-5},
             spec);
  const ActivationSpec activation = ReadSiTu(config);
  KdaSpec kda = ReadKimiKda(config, 96, 128);
  JsonConfig linear = config.Object("linear_attn_config");
  kda.gate_lower_bound = linear.Number({"gate_lower_bound"}, -5.0, -1e6, -1e-6);
  linear.RequireBool("use_full_rank_gate", true,
                     "only the full-rank output gate is supported");
  kda.full_rank_output_gate = true;

  MlaSpec mla = ReadMla(config, {.num_heads = 96,
                                 .q_lora_rank = 1536,
                                 .kv_lora_rank = 512,
                                 .qk_nope = 128,
                                 .qk_rope = 64,
                                 .v_dim = 128});
  config.RequireBool("mla_use_nope", true, "only unrotated MLA is supported");
  config.RequireBool("mla_use_output_gate", true,
                     "only MLA with an output gate is supported");
  mla.output_gate = true;
  // Nothing is rotated, so rotary settings have no effect.
  config.Ignore({"rope_theta", "rope_scaling", "rope_parameters"});

  const DenseMlpSpec dense = {config.Size({"intermediate_size"}, 33792),
                              activation};
  MoeSpec moe = ReadSigmoidMoe(
      config, {.num_experts = 896, .top_k = 16, .expert_width = 3072},
      activation);
  if (!config.Has("n_shared_experts") && !config.Has("num_shared_experts")) {
    moe.shared_width = 2 * moe.expert_width;
  }
  moe.latent_dim = config.Size({"routed_expert_hidden_size"}, 3584);
  moe.latent_norm = config.Bool({"latent_moe_use_norm"}, true);
  spec.residual = AttentionResiduals{
      .block_size = config.Int({"attn_res_block_size"}, 12, 1, 4096)};

  const size_t layers = spec.blocks.size();
  const int64_t frequency = config.Int({"moe_layer_freq"}, 1, 1, 4096);
  const std::vector<bool> is_kda = ReadKimiKdaLayers(config, layers);
  std::vector<bool> is_moe = ReadSparseLayers(config, layers, 1);
  for (size_t i = 0; i < layers; ++i) {
    BlockSpec& block = spec.blocks[i];
    if (is_kda[i]) {
      block.mixer = kda;
    } else {
      block.mixer = mla;
    }
    const bool counted = static_cast<int64_t>(i) % frequency == 0;
    if (is_moe[i] && (counted || config.Has("mlp_layer_types"))) {
      block.ffn = moe;
    } else {
      block.ffn = dense;
    }
  }
}

}  // namespace cadre
