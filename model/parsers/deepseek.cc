// deepseek_v3 (and kimi_k2), deepseek_v32 and glm_moe_dsa: MLA with rope, the
// latter two with a token indexer.

#include "absl/strings/str_cat.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

struct Family {
  CommonDefaults common;
  MlaDefaults mla;
  SigmoidMoeDefaults moe;
  int64_t intermediate_size;
  int64_t first_dense = 3;
  // Sparse attention.
  bool sparse = false;
  int64_t index_heads = 0;
  bool index_interleaved = false;
  bool index_sharing = false;
  int64_t index_frequency = 1;
};

IndexerSpec ReadIndexer(JsonConfig& config, const Family& family,
                        const MlaSpec& mla) {
  IndexerSpec indexer;
  indexer.num_heads =
      config.Int({"index_n_heads"}, family.index_heads, 1, 1 << 14);
  indexer.head_dim = config.Size({"index_head_dim"}, 128);
  indexer.topk = config.Size({"index_topk"}, 2048);
  indexer.rope = mla.rope;
  indexer.rope->interleaved = family.index_interleaved;
  config.RequireBool("indexer_rope_interleave", family.index_interleaved,
                     "the indexer of this model type rotates the other way");
  if (indexer.head_dim < mla.qk_rope_dim) {
    config.Error("index_head_dim", absl::StrCat("is ", indexer.head_dim,
                                                ", less than qk_rope_head_dim ",
                                                mla.qk_rope_dim));
  }
  if (config.Has("index_kpool")) {
    config.Error("index_kpool", "is not supported for this model type");
  }
  return indexer;
}

void ParseFamily(JsonConfig& config, const Family& family, ModelSpec& spec) {
  ReadCommon(config, family.common, spec);
  const ActivationSpec activation = ReadSwiGlu(config);
  MlaSpec mla = ReadMla(config, family.mla);
  if (mla.qk_rope_dim == 0) {
    config.Error("qk_rope_head_dim", "must not be 0 for this model type");
  }
  bool interleaved = true;
  if (family.sparse) {
    config.RequireBool("rope_interleave", true,
                       "this model type rotates interleaved pairs");
  } else {
    interleaved = config.Bool({"rope_interleave"}, true);
  }
  mla.rope =
      ReadRope(config, {.dim = mla.qk_rope_dim, .interleaved = interleaved});
  mla.softmax_scale = MlaSoftmaxScale(config, mla);
  config.RequireZero("swiglu_limit", "this model type does not clamp");
  if (config.Int({"moe_layer_freq"}, 1, 1, 4096) != 1) {
    config.Error("moe_layer_freq", "must be 1 for this model type");
  }

  const DenseMlpSpec dense = {
      config.Size({"intermediate_size"}, family.intermediate_size), activation};
  const MoeSpec moe = ReadSigmoidMoe(config, family.moe, activation);
  const size_t layers = spec.blocks.size();
  ReadLayerList(
      config, "layer_types",
      {family.sparse ? "deepseek_sparse_attention" : "full_attention"}, {},
      layers);
  const std::vector<bool> is_moe =
      ReadSparseLayers(config, layers, family.first_dense);
  if (!family.sparse) {
    // The reference reads the counter only.
    const int64_t first =
        config.Int({"first_k_dense_replace"}, family.first_dense, 0, 1 << 12);
    for (size_t i = 0; i < layers; ++i) {
      if (is_moe[i] == (static_cast<int64_t>(i) >= first)) continue;
      config.Error("mlp_layer_types",
                   "disagrees with first_k_dense_replace, the only one of the "
                   "two that this model type knows");
      break;
    }
  }
  std::vector<IndexerSpec::Kind> kinds(layers, IndexerSpec::Kind::kFull);
  if (family.sparse) {
    mla.indexer = ReadIndexer(config, family, mla);
    if (family.index_sharing) {
      kinds = ReadIndexerKinds(config, layers, family.index_frequency);
    }
    if (kinds[0] != IndexerSpec::Kind::kFull) {
      config.Error("indexer_types",
                   "makes layer 0 reuse keys that no layer has chosen");
    }
  }
  for (size_t i = 0; i < layers; ++i) {
    if (mla.indexer) mla.indexer->kind = kinds[i];
    spec.blocks[i].mixer = mla;
    if (is_moe[i]) {
      spec.blocks[i].ffn = moe;
    } else {
      spec.blocks[i].ffn = dense;
    }
  }
}

constexpr SigmoidMoeDefaults kDeepseekMoe = {.num_experts = 256,
                                             .top_k = 8,
                                             .expert_width = 2048,
                                             .num_groups = 8,
                                             .topk_groups = 4,
                                             .scaling = 2.5};

constexpr MlaDefaults kDeepseekMla = {.num_heads = 128,
                                      .q_lora_rank = 1536,
                                      .kv_lora_rank = 512,
                                      .qk_nope = 128,
                                      .qk_rope = 64,
                                      .v_dim = 128};

constexpr CommonDefaults kDeepseekCommon = {.hidden_size = 7168,
                                            .vocab_size = 129280,
                                            .num_layers = 61,
                                            .norm_eps = 1e-6};

}  // namespace

void ParseDeepseekV3(JsonConfig& config, ModelSpec& spec) {
  ParseFamily(config,
              {.common = kDeepseekCommon,
               .mla = kDeepseekMla,
               .moe = kDeepseekMoe,
               .intermediate_size = 18432},
              spec);
}

void ParseDeepseekV32(JsonConfig& config, ModelSpec& spec) {
  MlaDefaults mla = kDeepseekMla;
  mla.q_lora_required = true;
  ParseFamily(config,
              {.common = kDeepseekCommon,
               .mla = mla,
               .moe = kDeepseekMoe,
               .intermediate_size = 18432,
               .sparse = true,
               .index_heads = 64},
              spec);
}

void ParseGlmMoeDsa(JsonConfig& config, ModelSpec& spec) {
  SigmoidMoeDefaults moe = kDeepseekMoe;
  moe.num_groups = moe.topk_groups = 1;
  ParseFamily(config,
              {.common = {.hidden_size = 6144,
                          .vocab_size = 154880,
                          .num_layers = 78,
                          .norm_eps = 1e-5},
               .mla = {.num_heads = 64,
                       .q_lora_rank = 2048,
                       .kv_lora_rank = 512,
                       .qk_nope = 192,
                       .qk_rope = 64,
                       .v_dim = 256,
                       .q_lora_required = true},
               .moe = moe,
               .intermediate_size = 12288,
               .sparse = true,
               .index_heads = 32,
               .index_interleaved = true,
               .index_sharing = true,
               .index_frequency = 4},
              spec);
}

}  // namespace cadre
