#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/parsers/parsers.h"

namespace cadre {
namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxExperts = 1 << 14;

// The families have a name each. Nothing is trained from it, so two names that
// differ are no reason to refuse a model: the first that is there counts.
int64_t ReadMtpLayers(JsonConfig& config) {
  for (const char* name : {"num_nextn_predict_layers", "num_mtp_layers",
                           "mtp_num_hidden_layers", "num_mtp_modules"}) {
    if (config.Has(name)) return config.Int({name}, 0, 0, kMaxLayers);
  }
  return 0;
}

}  // namespace

void ReadCommon(JsonConfig& config, const CommonDefaults& defaults,
                ModelSpec& spec) {
  spec.hidden_size = config.Size({"hidden_size"}, defaults.hidden_size);
  spec.vocab_size = config.Int({"vocab_size"}, defaults.vocab_size, 1, 1 << 24);
  spec.norm_eps =
      config.Number({"rms_norm_eps"}, defaults.norm_eps, 1e-12, 1e-1);
  spec.max_positions = config.Int(
      {"max_position_embeddings", "model_max_length"}, 0, 1, int64_t{1} << 40);
  spec.blocks.resize(static_cast<size_t>(
      config.Int({"num_hidden_layers"}, defaults.num_layers, 1, kMaxLayers)));
  spec.num_mtp_layers = ReadMtpLayers(config);

  config.RequireBool("attention_bias", false,
                     "projections with a bias are not supported");
  config.RequireBool("mlp_bias", false,
                     "projections with a bias are not supported");
  for (const char* name :
       {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
        "hidden_dropout_prob", "attention_probs_dropout_prob"}) {
    config.RequireZero(name, "dropout in the base model is not supported");
  }
  for (const char* name :
       {"attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "logits_scaling", "embedding_multiplier", "residual_multiplier",
        "attention_multiplier", "clip_qkv"}) {
    config.RequireZero(name, "this model type has no such factor");
  }
  config.RequireBool("use_sliding_window", false,
                     "sliding-window attention is not supported");
}

int64_t NumExperts(JsonConfig& config, int64_t fallback) {
  return config.Int({"num_experts", "n_routed_experts", "num_local_experts"},
                    fallback, 1, kMaxExperts);
}

ActivationSpec ReadSwiGlu(JsonConfig& config) {
  config.RequireString("hidden_act", "silu", "supported is \"silu\"");
  return {};
}

std::optional<std::vector<bool>> ReadLayerList(JsonConfig& config,
                                               const char* list_name,
                                               std::vector<std::string> yes,
                                               std::vector<std::string> no,
                                               size_t num_layers) {
  const std::optional<std::vector<std::string>> words =
      config.Strings(list_name);
  if (!words) return std::nullopt;
  if (words->size() != num_layers) {
    config.Error(list_name,
                 absl::StrCat("has ", words->size(), " entries for ",
                              num_layers, " layers (num_hidden_layers)"));
    return std::nullopt;
  }
  std::vector<bool> flags;
  for (const std::string& word : *words) {
    const bool is_yes = std::find(yes.begin(), yes.end(), word) != yes.end();
    if (!is_yes && std::find(no.begin(), no.end(), word) == no.end()) {
      std::string known = yes.front();
      if (!no.empty()) absl::StrAppend(&known, ", ", no.front());
      config.Error(list_name,
                   absl::StrCat("contains \"", word, "\"; supported: ", known));
      return std::nullopt;
    }
    flags.push_back(is_yes);
  }
  return flags;
}

std::vector<bool> ReadSparseLayers(JsonConfig& config, size_t num_layers,
                                   int64_t first_dense) {
  const int64_t dense =
      config.Int({"first_k_dense_replace"}, first_dense, 0, kMaxLayers);
  if (auto list = ReadLayerList(config, "mlp_layer_types", {"sparse"},
                                {"dense"}, num_layers)) {
    return *list;
  }
  std::vector<bool> sparse(num_layers);
  for (size_t i = 0; i < num_layers; ++i) {
    sparse[i] = static_cast<int64_t>(i) >= dense;
  }
  return sparse;
}

MlaSpec ReadMla(JsonConfig& config, const MlaDefaults& defaults) {
  MlaSpec mla;
  mla.num_heads =
      config.Int({"num_attention_heads"}, defaults.num_heads, 1, 1 << 14);
  if (config.Contains("q_lora_rank") && !config.Has("q_lora_rank")) {
    config.Ignore({"q_lora_rank"});
    if (defaults.q_lora_required) {
      config.Error("q_lora_rank",
                   "is null: the indexer reads the query latent and needs it");
    }
  } else {
    mla.q_lora_rank =
        config.Int({"q_lora_rank"}, defaults.q_lora_rank, 1, 1 << 20);
  }
  mla.kv_lora_rank = config.Size({"kv_lora_rank"}, defaults.kv_lora_rank);
  mla.qk_nope_dim = config.Size({"qk_nope_head_dim"}, defaults.qk_nope);
  mla.qk_rope_dim =
      config.Int({"qk_rope_head_dim"}, defaults.qk_rope, 0, 1 << 16);
  mla.v_dim = config.Size({"v_head_dim"}, defaults.v_dim);
  const int64_t qk_head = config.Int(
      {"qk_head_dim"}, mla.qk_nope_dim + mla.qk_rope_dim, 1, 1 << 21);
  if (qk_head != mla.qk_nope_dim + mla.qk_rope_dim) {
    config.Error("qk_head_dim",
                 absl::StrCat("is ", qk_head, ", qk_nope_head_dim + ",
                              "qk_rope_head_dim is ",
                              mla.qk_nope_dim + mla.qk_rope_dim));
  }
  // Derived or unused for latent attention, whatever is stored.
  config.Ignore({"head_dim", "num_key_value_heads"});
  mla.softmax_scale =
      1.0 / std::sqrt(static_cast<double>(mla.qk_nope_dim + mla.qk_rope_dim));
  return mla;
}

MoeSpec ReadSigmoidMoe(JsonConfig& config, const SigmoidMoeDefaults& defaults,
                       const ActivationSpec& activation) {
  MoeSpec moe;
  moe.activation = activation;
  moe.num_experts = NumExperts(config, defaults.num_experts);
  moe.top_k = config.Int({"num_experts_per_tok", "num_experts_per_token"},
                         defaults.top_k, 1, kMaxExperts);
  moe.expert_width =
      config.Size({"moe_intermediate_size"}, defaults.expert_width);
  const int64_t shared =
      config.Int({"n_shared_experts", "num_shared_experts"}, 1, 0, 1024);
  moe.shared_width = moe.expert_width * shared;
  RouterSpec& router = moe.router;
  router.score = RouterSpec::Score::kSigmoid;
  router.correction_bias = true;
  router.renormalize_eps = 1e-20;
  router.num_groups = config.Int({"n_group", "num_expert_group"},
                                 defaults.num_groups, 1, kMaxExperts);
  router.topk_groups =
      config.Int({"topk_group"}, defaults.topk_groups, 1, kMaxExperts);
  router.renormalize = config.Bool({"norm_topk_prob", "moe_renormalize"}, true);
  router.scaling =
      config.Number({"routed_scaling_factor"}, defaults.scaling, 1e-6, 1e6);
  config.RequireString(
      "topk_method", "noaux_tc",
      "supported is \"noaux_tc\" (scores plus correction bias)");
  for (const char* name : {"scoring_func", "moe_router_activation_func"}) {
    config.RequireString(name, "sigmoid", "supported is \"sigmoid\"");
  }
  config.RequireBool("use_grouped_topk", true,
                     "only grouped top-k is supported");
  if (moe.num_experts % router.num_groups != 0 ||
      (router.num_groups > 1 && moe.num_experts / router.num_groups < 2)) {
    config.Error("n_group",
                 absl::StrCat("is ", router.num_groups, ": each group of the ",
                              moe.num_experts,
                              " experts needs the same number, at "
                              "least 2"));
  } else if (router.topk_groups > router.num_groups) {
    config.Error("topk_group",
                 absl::StrCat("is ", router.topk_groups, " of only ",
                              router.num_groups, " groups (n_group)"));
  } else if (moe.top_k >
             moe.num_experts / router.num_groups * router.topk_groups) {
    config.Error(
        "num_experts_per_tok",
        absl::StrCat("is ", moe.top_k, ", a token can choose among ",
                     moe.num_experts / router.num_groups * router.topk_groups,
                     " experts"));
  }
  return moe;
}

MoeSpec ReadSoftmaxMoe(JsonConfig& config, const SoftmaxMoeDefaults& defaults,
                       const ActivationSpec& activation) {
  MoeSpec moe;
  moe.activation = activation;
  moe.num_experts = NumExperts(config, defaults.num_experts);
  moe.top_k = config.Int({"num_experts_per_tok", "num_experts_per_token"},
                         defaults.top_k, 1, kMaxExperts);
  moe.expert_width =
      config.Size({"moe_intermediate_size"}, defaults.expert_width);
  moe.router.score = RouterSpec::Score::kSoftmax;
  moe.router.renormalize =
      config.Bool({"norm_topk_prob", "moe_renormalize"}, defaults.renormalize);
  const double coefficient =
      config.Number({"router_aux_loss_coef"}, 0.001, 0.0, 1e3);
  if (config.Bool({"output_router_logits"}, false)) {
    moe.router.aux_loss_coef = coefficient;
  }
  if (moe.top_k > moe.num_experts) {
    config.Error("num_experts_per_tok",
                 absl::StrCat("is ", moe.top_k, " of only ", moe.num_experts,
                              " experts"));
  }
  return moe;
}

std::vector<IndexerSpec::Kind> ReadIndexerKinds(JsonConfig& config,
                                                size_t num_layers,
                                                int64_t default_frequency) {
  const int64_t frequency =
      config.Int({"index_topk_freq"}, default_frequency, 1, kMaxLayers);
  const int64_t offset =
      config.Int({"index_skip_topk_offset"}, 2, 0, kMaxLayers);
  std::vector<IndexerSpec::Kind> kinds(num_layers, IndexerSpec::Kind::kFull);
  std::optional<std::vector<bool>> full;
  if (config.Has("indexer_types")) {
    full = ReadLayerList(config, "indexer_types", {"full"}, {"shared"},
                         num_layers);
  }
  config.Ignore({"indexer_types", "index_topk_pattern"});
  if (!full && config.Has("index_topk_pattern") &&
      !config.Has("indexer_types")) {
    full = ReadLayerPattern(config, "index_topk_pattern", 'F', 'S', num_layers);
  }
  for (size_t i = 0; i < num_layers; ++i) {
    const int64_t shifted =
        std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0);
    const bool is_full = full ? (*full)[i] : shifted % frequency == 0;
    if (!is_full) kinds[i] = IndexerSpec::Kind::kShared;
  }
  return kinds;
}

std::optional<std::vector<bool>> ReadLayerPattern(JsonConfig& config,
                                                  const char* name, char yes,
                                                  char no, size_t num_layers) {
  std::string pattern;
  if (config.IsList(name)) {
    const std::optional<std::vector<std::string>> items = config.Strings(name);
    if (!items) return std::nullopt;
    for (const std::string& item : *items) {
      pattern += item.size() == 1 ? item : std::string("?");
    }
  } else {
    pattern = config.String({name}, "");
  }
  if (pattern.size() != num_layers ||
      pattern.find_first_not_of(std::string{yes, no}) != std::string::npos) {
    config.Error(name, absl::StrCat("must be ", num_layers, " letters of ",
                                    std::string{yes, ' ', no}));
    return std::nullopt;
  }
  std::vector<bool> flags;
  for (char letter : pattern) flags.push_back(letter == yes);
  return flags;
}

void ReadQuantization(JsonConfig config, bool allow_mxfp4, ModelSpec& spec) {
  if (!config.present()) return;
  const std::string method = config.String({"quant_method"}, "");
  const std::string format = config.String({"format", "fmt"}, "");
  if (method == "fp8") {
    const std::optional<std::vector<int64_t>> block =
        config.Ints("weight_block_size");
    if (!block || *block != std::vector<int64_t>{128, 128}) {
      config.Error("weight_block_size", "must be [128, 128] for fp8 weights");
    }
    if (!format.empty() && format != "e4m3") {
      config.Error("fmt",
                   absl::StrCat("is \"", format, "\"; supported is \"e4m3\""));
    }
    spec.fp8_blocks = true;
    return;
  }
  const bool mxfp4 =
      method == "mxfp4" || (method == "compressed-tensors" &&
                            format.find("mxfp4") != std::string::npos);
  if (mxfp4 && allow_mxfp4) {
    for (BlockSpec& block : spec.blocks) {
      if (auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
        moe->storage = MoeSpec::Storage::kMxfp4;
      }
    }
    return;
  }
  config.Error(
      "quant_method",
      absl::StrCat("is \"", method, "\"",
                   format.empty() ? "" : absl::StrCat(" (", format, ")"),
                   "; supported are fp8 in blocks of 128 x 128",
                   allow_mxfp4 ? " and mxfp4 experts" : "",
                   ", or plain weights"));
}

}  // namespace cadre
