// qwen3_moe, qwen3_next and qwen3_5_moe: grouped-query attention with rope,
// softmax routers; the latter two mix in Gated DeltaNet layers.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

struct GqaDefaults {
  int64_t num_heads, num_kv_heads;
  std::optional<int64_t> head_dim;  // unset: hidden / heads
  bool output_gate = false;
  RopeOptions rope;
};

GqaSpec ReadGqa(JsonConfig& config, const GqaDefaults& defaults,
                const ModelSpec& spec) {
  GqaSpec gqa;
  gqa.num_heads =
      config.Int({"num_attention_heads"}, defaults.num_heads, 1, 1 << 14);
  gqa.num_kv_heads =
      config.Int({"num_key_value_heads"}, defaults.num_kv_heads, 1, 1 << 14);
  gqa.head_dim =
      config.Size({"head_dim"}, defaults.head_dim.value_or(std::max<int64_t>(
                                    spec.hidden_size / gqa.num_heads, 1)));
  gqa.output_gate = defaults.output_gate;
  if (gqa.num_heads % gqa.num_kv_heads != 0) {
    config.Error("num_key_value_heads",
                 absl::StrCat("is ", gqa.num_kv_heads,
                              " and does not divide num_attention_heads ",
                              gqa.num_heads));
  }
  gqa.softmax_scale = 1.0 / std::sqrt(static_cast<double>(gqa.head_dim));
  RopeOptions rope = defaults.rope;
  rope.dim = gqa.head_dim;
  gqa.rope = ReadRope(config, rope);
  // Only meaningful with use_sliding_window, which is refused.
  config.Ignore({"sliding_window", "max_window_layers"});
  return gqa;
}

GdnSpec ReadGdn(JsonConfig& config, GdnSpec::Projections projections) {
  GdnSpec gdn;
  gdn.projections = projections;
  gdn.num_key_heads = config.Int({"linear_num_key_heads"}, 16, 1, 1 << 14);
  gdn.num_value_heads = config.Int({"linear_num_value_heads"}, 32, 1, 1 << 14);
  gdn.key_head_dim = config.Size({"linear_key_head_dim"}, 128);
  gdn.value_head_dim = config.Size({"linear_value_head_dim"}, 128);
  gdn.conv_kernel = config.Int({"linear_conv_kernel_dim"}, 4, 1, 64);
  if (gdn.num_value_heads % gdn.num_key_heads != 0) {
    config.Error("linear_num_key_heads",
                 absl::StrCat("is ", gdn.num_key_heads,
                              " and does not divide linear_num_value_heads ",
                              gdn.num_value_heads));
  }
  return gdn;
}

// decoder_sparse_step and mlp_only_layers.
std::vector<bool> ReadSteppedLayers(JsonConfig& config, size_t num_layers) {
  const int64_t step = config.Int({"decoder_sparse_step"}, 1, 1, 4096);
  std::vector<bool> sparse(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    sparse[i] = static_cast<int64_t>(i + 1) % step == 0;
  }
  for (int64_t layer :
       config.Ints("mlp_only_layers").value_or(std::vector<int64_t>{})) {
    if (layer < 0 || layer >= static_cast<int64_t>(num_layers)) {
      config.Error("mlp_only_layers",
                   absl::StrCat("names layer ", layer, " of ", num_layers));
      continue;
    }
    sparse[layer] = false;
  }
  return sparse;
}

std::vector<bool> ReadLinearLayers(JsonConfig& config, size_t num_layers) {
  const int64_t interval = config.Int({"full_attention_interval"}, 4, 1, 4096);
  if (auto listed = ReadLayerList(config, "layer_types", {"linear_attention"},
                                  {"full_attention"}, num_layers)) {
    return *listed;
  }
  std::vector<bool> linear(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    linear[i] = static_cast<int64_t>(i + 1) % interval != 0;
  }
  return linear;
}

MoeSpec ReadSharedMoe(JsonConfig& config, const SoftmaxMoeDefaults& defaults,
                      const ActivationSpec& activation) {
  MoeSpec moe = ReadSoftmaxMoe(config, defaults, activation);
  moe.shared_width = config.Size({"shared_expert_intermediate_size"}, 512);
  moe.shared_gate = true;
  return moe;
}

void FillHybrid(const GdnSpec& gdn, const GqaSpec& gqa,
                const std::vector<bool>& linear, ModelSpec& spec) {
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    if (linear[i]) {
      spec.blocks[i].mixer = gdn;
    } else {
      spec.blocks[i].mixer = gqa;
    }
  }
}

void FillFfn(const MoeSpec& moe, const DenseMlpSpec& dense,
             const std::vector<bool>& sparse, ModelSpec& spec) {
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    if (sparse[i]) {
      spec.blocks[i].ffn = moe;
    } else {
      spec.blocks[i].ffn = dense;
    }
  }
}

}  // namespace

void ParseQwen3Moe(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 2048,
              .vocab_size = 151936,
              .num_layers = 24,
              .norm_eps = 1e-6},
             spec);
  const ActivationSpec activation = ReadSwiGlu(config);
  const GqaSpec gqa =
      ReadGqa(config, {.num_heads = 32, .num_kv_heads = 4}, spec);
  const size_t layers = spec.blocks.size();
  ReadLayerList(config, "layer_types", {"full_attention"}, {}, layers);
  const DenseMlpSpec dense = {config.Size({"intermediate_size"}, 6144),
                              activation};
  const MoeSpec moe = ReadSoftmaxMoe(config,
                                     {.num_experts = 128,
                                      .top_k = 8,
                                      .expert_width = 768,
                                      .renormalize = false},
                                     activation);
  for (BlockSpec& block : spec.blocks) block.mixer = gqa;
  FillFfn(moe, dense, ReadSteppedLayers(config, layers), spec);
}

void ParseQwen3Next(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 2048,
              .vocab_size = 151936,
              .num_layers = 48,
              .norm_eps = 1e-6},
             spec);
  spec.norm_one_plus_weight = true;
  const ActivationSpec activation = ReadSwiGlu(config);
  const GqaSpec gqa = ReadGqa(config,
                              {.num_heads = 16,
                               .num_kv_heads = 2,
                               .head_dim = 256,
                               .output_gate = true,
                               .rope = {.partial = 0.25}},
                              spec);
  const GdnSpec gdn = ReadGdn(config, GdnSpec::Projections::kGroupedQkvzBa);
  const size_t layers = spec.blocks.size();
  const DenseMlpSpec dense = {config.Size({"intermediate_size"}, 5632),
                              activation};
  const MoeSpec moe = ReadSharedMoe(config,
                                    {.num_experts = 512,
                                     .top_k = 10,
                                     .expert_width = 512,
                                     .renormalize = true},
                                    activation);
  FillHybrid(gdn, gqa, ReadLinearLayers(config, layers), spec);
  FillFfn(moe, dense, ReadSteppedLayers(config, layers), spec);
}

void ParseQwen35Moe(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 2048,
              .vocab_size = 248320,
              .num_layers = 40,
              .norm_eps = 1e-6},
             spec);
  spec.norm_one_plus_weight = true;
  const ActivationSpec activation = ReadSwiGlu(config);
  const GqaSpec gqa = ReadGqa(config,
                              {.num_heads = 16,
                               .num_kv_heads = 2,
                               .head_dim = 256,
                               .output_gate = true,
                               .rope = {.partial = 0.25, .mrope = true}},
                              spec);
  config.RequireBool("attn_output_gate", true,
                     "only attention with an output gate is supported");
  config.RequireBool("norm_topk_prob", true,
                     "this model type always renormalises the chosen experts");
  // Every layer is MoE.
  config.Ignore({"intermediate_size"});
  if (config.Int({"decoder_sparse_step"}, 1, 1, 4096) != 1 ||
      !config.Ints("mlp_only_layers")
           .value_or(std::vector<int64_t>{})
           .empty()) {
    config.Error("mlp_only_layers",
                 "and decoder_sparse_step do not exist for this model type: "
                 "every layer is MoE");
  }
  const GdnSpec gdn = ReadGdn(config, GdnSpec::Projections::kSplitQkvZBA);
  const MoeSpec moe = ReadSharedMoe(config,
                                    {.num_experts = 256,
                                     .top_k = 8,
                                     .expert_width = 512,
                                     .renormalize = true},
                                    activation);
  FillHybrid(gdn, gqa, ReadLinearLayers(config, spec.blocks.size()), spec);
  for (BlockSpec& block : spec.blocks) block.ffn = moe;
}

}  // namespace cadre
