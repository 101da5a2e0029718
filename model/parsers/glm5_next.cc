#include "absl/strings/str_cat.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

KdaSpec ReadKda(JsonConfig& config) {
  KdaSpec kda;
  kda.num_heads = config.Int({"linear_num_heads"}, 64, 1, 1 << 14);
  kda.head_dim = config.Size({"linear_head_dim"}, 128);
  kda.conv_kernel = config.Int({"linear_conv_kernel_dim"}, 4, 1, 64);
  std::optional<double> bound =
      config.OptionalNumber({"linear_lower_bound"}, -1e6, -1e-6);
  if (!bound && !config.Contains("linear_lower_bound")) bound = -5.0;

  JsonConfig linear = config.Object("linear_attn_config");
  kda.num_heads = linear.Int({"num_heads"}, kda.num_heads, 1, 1 << 14);
  kda.head_dim = linear.Size({"head_dim"}, kda.head_dim);
  kda.conv_kernel =
      linear.Int({"short_conv_kernel_size"}, kda.conv_kernel, 1, 64);
  const std::optional<double> override_bound =
      linear.OptionalNumber({"gate_lower_bound"}, -1e6, -1e-6);
  if (override_bound) {
    bound = override_bound;
  } else if (linear.Contains("gate_lower_bound")) {
    bound.reset();
  }
  // safe_gate may stand at either place; it turns a null bound into -5 where
  // the linear_attn_config form is used or where it is stated.
  const bool stated = config.Has("safe_gate") || linear.present();
  const bool safe =
      linear.Bool({"safe_gate"}, config.Bool({"safe_gate"}, true));
  if (!bound && stated && safe) bound = -5.0;
  kda.gate_lower_bound = bound;
  linear.Ignore({"kda_layers", "full_attn_layers"});
  linear.WarnAboutUnused();
  return kda;
}

IndexerSpec ReadIndexer(JsonConfig& config) {
  IndexerSpec indexer;
  indexer.num_heads = config.Int({"index_n_heads"}, 32, 1, 1 << 14);
  indexer.head_dim = config.Size({"index_head_dim"}, 128);
  indexer.topk = config.Size({"index_topk"}, 2048);
  indexer.kpool = config.Size({"index_kpool"}, 16);
  if (indexer.topk % indexer.kpool != 0) {
    config.Error("index_kpool", absl::StrCat("is ", indexer.kpool,
                                             " and does not divide index_topk ",
                                             indexer.topk));
  }
  if (!config.Bool({"index_kpool_always_select_tail"}, true) &&
      indexer.kpool > 1) {
    config.Error("index_kpool_always_select_tail",
                 "is false: the first queries would have no key to attend to");
  }
  return indexer;
}

}  // namespace

void ParseGlm5Next(JsonConfig& config, ModelSpec& spec) {
  ReadCommon(config,
             {.hidden_size = 4096,
              .vocab_size = 154880,
              .num_layers = 45,
              .norm_eps = 1e-5},
             spec);
  ActivationSpec activation = ReadSwiGlu(config);
  activation.kind = ActivationSpec::Kind::kClampedSwiGlu;
  activation.limit = config.Number({"swiglu_limit"}, 10.0, 1e-6, 1e9);
  const KdaSpec kda = ReadKda(config);
  MlaSpec mla = ReadMla(config, {.num_heads = 64,
                                 .q_lora_rank = 1536,
                                 .kv_lora_rank = 512,
                                 .qk_nope = 256,
                                 .qk_rope = 0,
                                 .v_dim = 256,
                                 .q_lora_required = true});
  mla.latent_norm_eps = spec.norm_eps;
  if (mla.qk_rope_dim != 0) {
    config.Error("qk_rope_head_dim", "must be 0: this model rotates nothing");
  }
  config.Ignore({"rope_theta", "rope_scaling", "rope_parameters",
                 "rope_interleave", "indexer_rope_interleave"});
  const IndexerSpec indexer = ReadIndexer(config);

  const DenseMlpSpec dense = {config.Size({"intermediate_size"}, 12288),
                              activation};
  MoeSpec moe = ReadSigmoidMoe(
      config,
      {.num_experts = 288, .top_k = 8, .expert_width = 2048, .scaling = 2.5},
      activation);
  const double coefficient =
      config.Number({"router_aux_loss_coef"}, 0.001, 0.0, 1e3);
  if (config.Bool({"output_router_logits"}, false)) {
    moe.router.aux_loss_coef = coefficient;
  }
  spec.residual = HyperConnections{
      .multiplicity = config.Int({"hc_mult"}, 4, 1, 64),
      .eps = config.Number({"hc_eps"}, 1e-6, 1e-12, 1e-1),
      .sinkhorn_iters = config.Int({"hc_sinkhorn_iters"}, 20, 1, 1000)};

  const size_t layers = spec.blocks.size();
  std::vector<bool> sparse_attention(layers);
  for (size_t i = 0; i < layers; ++i) sparse_attention[i] = i % 4 == 3;
  if (const auto listed =
          ReadLayerList(config, "layer_types",
                        {"deepseek_sparse_attention", "full_attention"},
                        {"linear_attention"}, layers)) {
    sparse_attention = *listed;
  }
  const std::vector<bool> is_moe = ReadSparseLayers(config, layers, 3);
  const std::vector<IndexerSpec::Kind> kinds =
      ReadIndexerKinds(config, layers, 1);
  for (size_t i = 0; i < layers; ++i) {
    BlockSpec& block = spec.blocks[i];
    if (sparse_attention[i]) {
      mla.indexer = indexer;
      mla.indexer->kind = kinds[i];
      // A linear layer in between drops the choice.
      if (kinds[i] == IndexerSpec::Kind::kShared &&
          (i == 0 || !sparse_attention[i - 1])) {
        config.Error("indexer_types",
                     absl::StrCat("makes layer ", i,
                                  " reuse the keys of the layer before it, "
                                  "which has none"));
      }
      block.mixer = mla;
    } else {
      block.mixer = kda;
    }
    if (is_moe[i]) {
      block.ffn = moe;
    } else {
      block.ffn = dense;
    }
  }
}

}  // namespace cadre
