#include "model/tensor_names.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace cadre {
namespace {

// ---- what the naming tables of a model type differ in ----------------------

bool IsKimi(const ModelSpec& spec) {
  return spec.model_type == "kimi_linear" || spec.model_type == "kimi_k3";
}

// kimi_k3 keeps its own names in adapters; the others use reference names.
bool HasOwnPeftNames(const ModelSpec& spec) {
  return spec.model_type == "kimi_k3";
}

const char* SharedExpertName(const MoeSpec& moe) {
  return moe.shared_gate ? "shared_expert" : "shared_experts";
}

// Replaces the first occurrence.
std::string Replaced(const std::string& text, absl::string_view from,
                     absl::string_view to) {
  const size_t at = text.find(std::string(from));
  if (at == std::string::npos) return text;
  return absl::StrCat(text.substr(0, at), to, text.substr(at + from.size()));
}

// Names on disk of a reference name, the one to write first.
std::vector<std::string> DiskNames(const ModelSpec& spec, bool dense_layer,
                                   const std::string& name) {
  std::vector<std::string> names;
  if (absl::StrContains(name, ".forget_gate.")) {
    names.push_back(Replaced(name, ".forget_gate.", "."));
  } else if (absl::StrContains(name, ".attn_hc.")) {
    names.push_back(Replaced(name, ".attn_hc.", ".hc_attn_"));
  } else if (absl::StrContains(name, ".ffn_hc.")) {
    names.push_back(Replaced(name, ".ffn_hc.", ".hc_ffn_"));
  } else if (IsKimi(spec) && absl::StrContains(name, ".mlp.")) {
    const std::string kimi = Replaced(name, ".mlp.", ".block_sparse_moe.");
    if (dense_layer) return {name, kimi};
    return {kimi, name};
  }
  names.push_back(name);
  return names;
}

// Collects the tensors of one model.
class Builder {
 public:
  explicit Builder(const ModelSpec& spec) : spec_(spec) {}

  LogicalTensor& Add(std::string name, std::vector<int64_t> shape) {
    LogicalTensor tensor;
    tensor.is_matrix = shape.size() == 2 && absl::EndsWith(name, ".weight");
    tensor.whole_names = DiskNames(spec_, dense_layer_, name);
    tensor.name = std::move(name);
    tensor.shape = std::move(shape);
    tensor.layer = layer_;
    tensors_.push_back(std::move(tensor));
    return tensors_.back();
  }

  void Mlp(const std::string& path, int64_t width, int64_t hidden) {
    Add(path + ".gate_proj.weight", {width, hidden});
    Add(path + ".up_proj.weight", {width, hidden});
    Add(path + ".down_proj.weight", {hidden, width});
  }

  void Mixer(const std::string& layer, const KdaSpec& kda);
  void Mixer(const std::string& layer, const GdnSpec& gdn);
  void Mixer(const std::string& layer, const MlaSpec& mla);
  void Mixer(const std::string& layer, const GqaSpec& gqa);
  void Indexer(const std::string& attn, const MlaSpec& mla);
  void Moe(const std::string& mlp, const MoeSpec& moe);
  void Residual(const std::string& layer);

  std::vector<LogicalTensor> Build();

 private:
  const ModelSpec& spec_;
  int layer_ = -1;
  bool dense_layer_ = false;
  std::vector<LogicalTensor> tensors_;
};

void Builder::Mixer(const std::string& layer, const KdaSpec& kda) {
  const std::string attn = layer + "self_attn.";
  const int64_t h = spec_.hidden_size, n = kda.num_heads, d = kda.head_dim;
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    Add(absl::StrCat(attn, name, ".weight"), {n * d, h});
  }
  LogicalTensor& conv =
      Add(attn + "conv1d.weight", {3 * n * d, 1, kda.conv_kernel});
  conv.keep_f32 = true;
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    conv.row_block_names.push_back({absl::StrCat(attn, name, ".weight")});
  }
  Add(attn + "forget_gate.f_a_proj.weight", {d, h});
  Add(attn + "forget_gate.f_b_proj.weight", {n * d, d});
  LogicalTensor& a_log = Add(attn + "forget_gate.A_log", {n});
  a_log.keep_f32 = a_log.any_shape = true;
  if (spec_.model_type == "kimi_k3")
    a_log.padded_elements = (n + 127) / 128 * 128;
  Add(attn + "forget_gate.dt_bias", {n * d}).keep_f32 = true;
  Add(attn + "b_proj.weight", {n, h});
  if (kda.full_rank_output_gate) {
    Add(attn + "g_proj.weight", {n * d, h});
  } else {
    Add(attn + "g_a_proj.weight", {d, h});
    Add(attn + "g_b_proj.weight", {n * d, d});
  }
  Add(attn + "o_norm.weight", {d}).keep_f32 = true;
  Add(attn + "o_proj.weight", {h, n * d});
}

void Builder::Mixer(const std::string& layer, const GdnSpec& gdn) {
  const std::string attn = layer + "linear_attn.";
  const int64_t h = spec_.hidden_size;
  const int64_t key = gdn.num_key_heads * gdn.key_head_dim;
  const int64_t value = gdn.num_value_heads * gdn.value_head_dim;
  if (gdn.projections == GdnSpec::Projections::kGroupedQkvzBa) {
    Add(attn + "in_proj_qkvz.weight", {2 * key + 2 * value, h});
    Add(attn + "in_proj_ba.weight", {2 * gdn.num_value_heads, h});
  } else {
    Add(attn + "in_proj_qkv.weight", {2 * key + value, h});
    Add(attn + "in_proj_z.weight", {value, h});
    Add(attn + "in_proj_b.weight", {gdn.num_value_heads, h});
    Add(attn + "in_proj_a.weight", {gdn.num_value_heads, h});
  }
  Add(attn + "conv1d.weight", {2 * key + value, 1, gdn.conv_kernel}).keep_f32 =
      true;
  Add(attn + "dt_bias", {gdn.num_value_heads}).keep_f32 = true;
  LogicalTensor& a_log = Add(attn + "A_log", {gdn.num_value_heads});
  a_log.keep_f32 = a_log.any_shape = true;
  Add(attn + "norm.weight", {gdn.value_head_dim});
  Add(attn + "out_proj.weight", {h, value});
}

void Builder::Mixer(const std::string& layer, const MlaSpec& mla) {
  const std::string attn = layer + "self_attn.";
  const int64_t h = spec_.hidden_size, n = mla.num_heads;
  const int64_t qk = mla.qk_nope_dim + mla.qk_rope_dim;
  if (mla.q_lora_rank > 0) {
    Add(attn + "q_a_proj.weight", {mla.q_lora_rank, h});
    Add(attn + "q_a_layernorm.weight", {mla.q_lora_rank});
    Add(attn + "q_b_proj.weight", {n * qk, mla.q_lora_rank});
  } else {
    Add(attn + "q_proj.weight", {n * qk, h});
  }
  Add(attn + "kv_a_proj_with_mqa.weight",
      {mla.kv_lora_rank + mla.qk_rope_dim, h});
  Add(attn + "kv_a_layernorm.weight", {mla.kv_lora_rank});
  Add(attn + "kv_b_proj.weight",
      {n * (mla.qk_nope_dim + mla.v_dim), mla.kv_lora_rank});
  if (mla.output_gate) Add(attn + "g_proj.weight", {n * mla.v_dim, h});
  Add(attn + "o_proj.weight", {h, n * mla.v_dim});
  if (mla.indexer && mla.indexer->kind == IndexerSpec::Kind::kFull) {
    Indexer(attn + "indexer.", mla);
  }
}

void Builder::Indexer(const std::string& path, const MlaSpec& mla) {
  const IndexerSpec& indexer = *mla.indexer;
  const int64_t h = spec_.hidden_size, d = indexer.head_dim;
  const size_t first = tensors_.size();
  Add(path + "wq_b.weight", {indexer.num_heads * d, mla.q_lora_rank});
  Add(path + "wk.weight", {d, h});
  Add(path + "k_norm.weight", {d});
  Add(path + "k_norm.bias", {d});
  Add(path + "weights_proj.weight", {indexer.num_heads, h}).keep_f32 = true;
  if (indexer.kpool > 0) {
    Add(path + "index_kpool_compress_ape", {indexer.kpool, d});
    Add(path + "index_kpool_compress_gate", {d, h}).is_matrix = true;
  }
  for (size_t i = first; i < tensors_.size(); ++i) {
    tensors_[i].can_have_gradient = false;
  }
}

void Builder::Mixer(const std::string& layer, const GqaSpec& gqa) {
  const std::string attn = layer + "self_attn.";
  const int64_t h = spec_.hidden_size, d = gqa.head_dim;
  const int64_t q_rows = gqa.num_heads * d * (gqa.output_gate ? 2 : 1);
  Add(attn + "q_proj.weight", {q_rows, h});
  Add(attn + "k_proj.weight", {gqa.num_kv_heads * d, h});
  Add(attn + "v_proj.weight", {gqa.num_kv_heads * d, h});
  Add(attn + "o_proj.weight", {h, gqa.num_heads * d});
  Add(attn + "q_norm.weight", {d});
  Add(attn + "k_norm.weight", {d});
}

void Builder::Moe(const std::string& mlp, const MoeSpec& moe) {
  const int64_t h = spec_.hidden_size, e = moe.num_experts;
  const int64_t width = moe.expert_width;
  Add(mlp + "gate.weight", {e, h});
  if (moe.router.correction_bias) {
    LogicalTensor& bias = Add(mlp + "gate.e_score_correction_bias", {e});
    bias.role = LogicalTensor::Role::kBuffer;
    bias.can_have_gradient = false;
    bias.keep_f32 = true;
  }
  const int64_t in = moe.latent_dim > 0 ? moe.latent_dim : h;
  if (moe.latent_dim > 0) {
    Add(mlp + "routed_expert_down_proj.weight", {in, h});
    Add(mlp + "routed_expert_up_proj.weight", {h, in});
    if (moe.latent_norm) Add(mlp + "routed_expert_norm.weight", {in});
  }
  // The kimi names come first for kimi, the common ones are accepted too.
  const auto namings = [&](std::vector<std::string> kimi,
                           std::vector<std::string> common) {
    std::vector<ExpertNaming> result;
    for (const std::string& path : DiskNames(spec_, false, mlp + "experts.")) {
      if (IsKimi(spec_)) result.push_back({path, kimi});
      result.push_back({path, common});
    }
    return result;
  };
  LogicalTensor& gate_up =
      Add(mlp + "experts.gate_up_proj", {e, 2 * width, in});
  gate_up.role = LogicalTensor::Role::kExperts;
  gate_up.is_matrix = true;
  gate_up.expert_namings = namings({".w1.weight", ".w3.weight"},
                                   {".gate_proj.weight", ".up_proj.weight"});
  LogicalTensor& down = Add(mlp + "experts.down_proj", {e, in, width});
  down.role = LogicalTensor::Role::kExperts;
  down.is_matrix = true;
  down.expert_namings = namings({".w2.weight"}, {".down_proj.weight"});
  if (moe.shared_width > 0) {
    Mlp(mlp + SharedExpertName(moe), moe.shared_width, h);
  }
  if (moe.shared_gate) Add(mlp + "shared_expert_gate.weight", {1, h});
}

void Builder::Residual(const std::string& layer) {
  const int64_t h = spec_.hidden_size;
  if (const auto* hc = std::get_if<HyperConnections>(&spec_.residual)) {
    const int64_t m = hc->multiplicity;
    for (const char* site : {"attn_hc", "ffn_hc"}) {
      const std::string path = absl::StrCat(layer, site, ".");
      Add(path + "fn", {(2 + m) * m, m * h});
      Add(path + "base", {(2 + m) * m});
      Add(path + "scale", {3});
    }
  }
  if (std::holds_alternative<AttentionResiduals>(spec_.residual)) {
    for (const char* site : {"self_attention_res", "mlp_res"}) {
      // Before layer 0 there is nothing to mix: its mix is never run.
      const bool used = layer_ > 0 || absl::string_view(site) == "mlp_res";
      Add(absl::StrCat(layer, site, "_norm.weight"), {h}).can_have_gradient =
          used;
      Add(absl::StrCat(layer, site, "_proj.weight"), {1, h}).can_have_gradient =
          used;
    }
  }
}

std::vector<LogicalTensor> Builder::Build() {
  const int64_t h = spec_.hidden_size;
  Add(spec_.tensor_prefix + "embed_tokens.weight", {spec_.vocab_size, h});
  for (size_t i = 0; i < spec_.blocks.size(); ++i) {
    const BlockSpec& block = spec_.blocks[i];
    layer_ = static_cast<int>(i);
    dense_layer_ = std::holds_alternative<DenseMlpSpec>(block.ffn);
    const std::string layer = LayerPrefix(spec_, layer_);
    Add(layer + "input_layernorm.weight", {h});
    std::visit([&](const auto& mixer) { Mixer(layer, mixer); }, block.mixer);
    Add(layer + "post_attention_layernorm.weight", {h});
    if (const auto* dense = std::get_if<DenseMlpSpec>(&block.ffn)) {
      Mlp(layer + "mlp", dense->width, h);
    } else {
      Moe(layer + "mlp.", std::get<MoeSpec>(block.ffn));
    }
    Residual(layer);
  }
  layer_ = -1;
  if (std::holds_alternative<AttentionResiduals>(spec_.residual)) {
    Add(spec_.tensor_prefix + "output_attn_res_norm.weight", {h});
    Add(spec_.tensor_prefix + "output_attn_res_proj.weight", {1, h});
  }
  Add(spec_.tensor_prefix + "norm.weight", {h});
  if (!spec_.tie_word_embeddings) {
    Add(LmHeadName(spec_), {spec_.vocab_size, h});
  }
  return std::move(tensors_);
}

}  // namespace

int64_t LogicalTensor::num_elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string LayerPrefix(const ModelSpec& spec, int layer) {
  return absl::StrCat(spec.tensor_prefix, "layers.", layer, ".");
}

std::string LmHeadName(const ModelSpec& spec) {
  return spec.tensor_prefix == "language_model.model."
             ? "language_model.lm_head.weight"
             : "lm_head.weight";
}

std::vector<LogicalTensor> LogicalTensors(const ModelSpec& spec) {
  return Builder(spec).Build();
}

bool IsSkippedTensor(const ModelSpec& spec, absl::string_view disk_name) {
  for (absl::string_view prefix : {"model.visual.", "visual.", "vision_tower.",
                                   "mm_projector.", "mtp.", "model.mtp."}) {
    if (absl::StartsWith(disk_name, prefix)) return true;
  }
  if (absl::StrContains(disk_name, ".shared_head.")) return true;
  absl::string_view rest = disk_name;
  if (!absl::ConsumePrefix(&rest, spec.tensor_prefix + "layers.")) return false;
  int64_t layer;
  return absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) &&
         layer >= static_cast<int64_t>(spec.blocks.size());
}

std::vector<LinearModule> LinearModules(const ModelSpec& spec) {
  std::vector<LinearModule> modules;
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    absl::string_view path = tensor.name;
    if (tensor.layer < 0 || tensor.role != LogicalTensor::Role::kDense ||
        tensor.shape.size() != 2 || !absl::ConsumeSuffix(&path, ".weight") ||
        absl::EndsWith(path, ".mlp.gate") ||
        absl::EndsWith(path, "_res_proj")) {
      continue;
    }
    LinearModule module;
    module.path = std::string(path);
    module.peft_path = module.path;
    if (HasOwnPeftNames(spec)) {
      module.peft_path =
          std::string(absl::StripSuffix(tensor.whole_names.front(), ".weight"));
    }
    module.name = module.path.substr(module.path.rfind('.') + 1);
    module.layer = tensor.layer;
    module.out = tensor.shape[0];
    module.in = tensor.shape[1];
    module.can_have_gradient = tensor.can_have_gradient;
    modules.push_back(std::move(module));
  }
  return modules;
}

std::vector<MoeModule> MoeModules(const ModelSpec& spec) {
  std::vector<MoeModule> modules;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const auto* moe = std::get_if<MoeSpec>(&spec.blocks[i].ffn);
    if (moe == nullptr) continue;
    MoeModule module;
    const std::string layer = LayerPrefix(spec, static_cast<int>(i));
    module.path = layer + "mlp";
    module.peft_path =
        HasOwnPeftNames(spec) ? layer + "block_sparse_moe" : module.path;
    module.layer = static_cast<int>(i);
    module.num_experts = moe->num_experts;
    module.in = moe->latent_dim > 0 ? moe->latent_dim : spec.hidden_size;
    module.width = moe->expert_width;
    module.router_in = spec.hidden_size;
    if (HasOwnPeftNames(spec)) {
      module.gate_name = "w1";
      module.up_name = "w3";
      module.down_name = "w2";
    } else {
      module.gate_name = "gate_proj";
      module.up_name = "up_proj";
      module.down_name = "down_proj";
    }
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace cadre
