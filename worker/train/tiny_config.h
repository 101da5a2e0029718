#ifndef CADRE_WORKER_TRAIN_TINY_CONFIG_H_
#define CADRE_WORKER_TRAIN_TINY_CONFIG_H_

// For tests: config.json of small hybrid MoE models (kimi_linear): linear
// attention, full attention, then linear again; a dense block first. Stateless.

#include <string>

#include "absl/strings/str_cat.h"

namespace cadre::testing {

struct TinySizes {
  int hidden = 16;  // a multiple of 4; heads and latents follow from it
  int vocab = 48;
  int layers = 2;  // 2 or 3
  int dense_width = 24, expert_width = 12;
  int num_experts = 4, top_k = 2;
  double routed_scaling = 1.5;
  int max_length = 1024;
};

inline std::string TinyConfig(const TinySizes& s = {}) {
  const bool three = s.layers == 3;
  const int half = s.hidden / 2, quarter = s.hidden / 4;
  return absl::StrCat(
      R"({"model_type": "kimi_linear", "hidden_size": )", s.hidden,
      R"(, "vocab_size": )", s.vocab, R"(, "num_hidden_layers": )", s.layers,
      R"(, "layer_types": ["linear_attention", "full_attention")",
      three ? R"(, "linear_attention")" : "",
      R"(], "mlp_layer_types": ["dense", "sparse")",
      three ? R"(, "sparse")" : "", R"(], "intermediate_size": )",
      s.dense_width, R"(, "moe_intermediate_size": )", s.expert_width,
      R"(, "num_experts": )", s.num_experts, R"(, "num_experts_per_token": )",
      s.top_k, R"(, "num_shared_experts": 1, "routed_scaling_factor": )",
      s.routed_scaling,
      R"(, "moe_renormalize": true, "num_expert_group": 1, "topk_group": 1,
      "linear_attn_config": {"num_heads": 2, "head_dim": )",
      half, R"(, "short_conv_kernel_size": 4, "kda_layers": [1)",
      three ? ", 3" : "",
      R"(], "full_attn_layers": [2]}, "linear_num_heads": 2,
      "linear_head_dim": )",
      half, R"(, "linear_conv_kernel_dim": 4, "num_attention_heads": 2,
      "num_key_value_heads": 2, "q_lora_rank": null, "kv_lora_rank": )",
      half, R"(, "qk_nope_head_dim": )", half, R"(, "qk_rope_head_dim": )",
      quarter, R"(, "v_head_dim": )", half, R"(, "head_dim": )", quarter,
      R"(, "rms_norm_eps": 1e-5, "hidden_act": "silu",
      "tie_word_embeddings": false, "pad_token_id": 0,
      "model_max_length": )",
      s.max_length, "}");
}

}  // namespace cadre::testing

#endif  // CADRE_WORKER_TRAIN_TINY_CONFIG_H_
