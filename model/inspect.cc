#include "model/inspect.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

bool IsFolder(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0;
}

void Count(const LogicalTensor& tensor, const ModelSpec& spec,
           ParameterCounts& counts) {
  const int64_t n = tensor.num_elements();
  if (tensor.role == LogicalTensor::Role::kBuffer) return;
  counts.total += n;
  if (tensor.role == LogicalTensor::Role::kExperts) {
    const auto& moe = std::get<MoeSpec>(spec.blocks[tensor.layer].ffn);
    counts.routed_experts += n;
    counts.active += n / moe.num_experts * moe.top_k;
    return;
  }
  const bool is_embedding =
      tensor.name == spec.tensor_prefix + "embed_tokens.weight";
  if (is_embedding) counts.embedding = n;
  if (is_embedding ? spec.tie_word_embeddings
                   : tensor.name == LmHeadName(spec)) {
    counts.head = n;
    counts.tied = is_embedding;
  }
  if (!is_embedding || spec.tie_word_embeddings) counts.active += n;
}

// The block whose shape a multi-token-prediction layer has; -1: none.
int MtpLikeBlock(const ModelSpec& spec) {
  int best = -1;
  bool best_is_moe = false;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const BlockSpec& block = spec.blocks[i];
    const bool softmax = std::holds_alternative<MlaSpec>(block.mixer) ||
                         std::holds_alternative<GqaSpec>(block.mixer);
    const bool moe = std::holds_alternative<MoeSpec>(block.ffn);
    if (!softmax || (best_is_moe && !moe)) continue;
    best = static_cast<int>(i);
    best_is_moe = moe;
  }
  return best >= 0 ? best : static_cast<int>(spec.blocks.size()) - 1;
}

struct MixerDims {
  std::string operator()(const KdaSpec& kda) const {
    return absl::StrCat(kda.num_heads, " heads x ", kda.head_dim, ", conv ",
                        kda.conv_kernel,
                        kda.gate_lower_bound
                            ? absl::StrCat(", decay >= ", *kda.gate_lower_bound)
                            : ", decay unbounded");
  }
  std::string operator()(const GdnSpec& gdn) const {
    return absl::StrCat(gdn.num_key_heads, " key heads x ", gdn.key_head_dim,
                        ", ", gdn.num_value_heads, " value heads x ",
                        gdn.value_head_dim, ", conv ", gdn.conv_kernel);
  }
  std::string operator()(const MlaSpec& mla) const {
    std::string out = absl::StrCat(mla.num_heads, " heads x ", mla.qk_nope_dim,
                                   "+", mla.qk_rope_dim, "/", mla.v_dim);
    if (mla.q_lora_rank > 0) absl::StrAppend(&out, ", q ", mla.q_lora_rank);
    absl::StrAppend(&out, ", kv ", mla.kv_lora_rank,
                    mla.rope ? ", rope" : ", no rope");
    if (mla.output_gate) absl::StrAppend(&out, ", gated");
    if (mla.indexer) {
      const IndexerSpec& indexer = *mla.indexer;
      absl::StrAppend(&out, ", top ", indexer.topk);
      if (indexer.kpool > 0)
        absl::StrAppend(&out, " in pools of ", indexer.kpool);
      if (indexer.kind == IndexerSpec::Kind::kShared) {
        absl::StrAppend(&out, " of an earlier layer");
      } else {
        absl::StrAppend(&out, " by ", indexer.num_heads, " x ",
                        indexer.head_dim);
      }
    }
    return out;
  }
  std::string operator()(const GqaSpec& gqa) const {
    return absl::StrCat(gqa.num_heads, " heads x ", gqa.head_dim, ", ",
                        gqa.num_kv_heads, " kv heads, rope ", gqa.rope.dim,
                        gqa.output_gate ? ", gated" : "");
  }
};

const char* ActivationName(const ActivationSpec& activation) {
  switch (activation.kind) {
    case ActivationSpec::Kind::kSwiGlu:
      return "swiglu";
    case ActivationSpec::Kind::kClampedSwiGlu:
      return "clamped swiglu";
    case ActivationSpec::Kind::kSiTu:
      return "situ";
  }
  return "?";
}

struct FfnDims {
  std::string operator()(const DenseMlpSpec& dense) const {
    return absl::StrCat(dense.width, " wide, ",
                        ActivationName(dense.activation));
  }
  std::string operator()(const MoeSpec& moe) const {
    std::string out = absl::StrCat(moe.top_k, " of ", moe.num_experts,
                                   " experts x ", moe.expert_width);
    if (moe.latent_dim > 0) absl::StrAppend(&out, " in ", moe.latent_dim);
    if (moe.shared_width > 0) {
      absl::StrAppend(&out, ", shared ", moe.shared_width);
    }
    absl::StrAppend(&out, ", ",
                    moe.router.score == RouterSpec::Score::kSigmoid
                        ? "sigmoid"
                        : "softmax");
    if (moe.router.num_groups > 1) {
      absl::StrAppend(&out, " in ", moe.router.topk_groups, " of ",
                      moe.router.num_groups, " groups");
    }
    absl::StrAppend(&out, ", ", ActivationName(moe.activation));
    return out;
  }
};

void FillFromSpec(InspectReport& report) {
  const ModelSpec& spec = report.spec;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    const BlockSpec& block = spec.blocks[i];
    LayerReport layer;
    layer.layer = static_cast<int>(i);
    layer.mixer = MixerKindName(block.mixer);
    layer.ffn = FfnKindName(block.ffn);
    layer.mixer_dims = std::visit(MixerDims(), block.mixer);
    layer.ffn_dims = std::visit(FfnDims(), block.ffn);
    report.layers.push_back(std::move(layer));
  }
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    Count(tensor, spec, report.parameters);
    if (tensor.layer >= 0) {
      Count(tensor, spec, report.layers[tensor.layer].parameters);
    }
  }
  report.published = CountAsPublished(spec);
  report.lora_target_names = LoraTargetNames(spec);
  report.warnings = spec.warnings;
}

}  // namespace

ParameterCounts CountParameters(const ModelSpec& spec) {
  ParameterCounts counts;
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    Count(tensor, spec, counts);
  }
  return counts;
}

PublishedCounts CountAsPublished(const ModelSpec& spec) {
  ParameterCounts all, extra;
  const int like = MtpLikeBlock(spec);
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    Count(tensor, spec, all);
    if (tensor.layer >= 0 && tensor.layer == like) Count(tensor, spec, extra);
  }
  const int64_t joint =
      2 * spec.hidden_size * spec.hidden_size + 3 * spec.hidden_size;
  PublishedCounts counts;
  counts.mtp_layers = spec.num_mtp_layers;
  counts.total = all.total + counts.mtp_layers * (extra.total + joint);
  counts.active = all.active + (all.tied ? 0 : all.embedding) +
                  counts.mtp_layers * (extra.active + joint);
  return counts;
}

absl::StatusOr<InspectReport> InspectModel(const std::string& path,
                                           const InspectOptions& options) {
  InspectReport report;
  report.path = path;
  const bool folder = IsFolder(path);
  report.has_weights =
      folder && (Exists(path + "/model.safetensors") ||
                 Exists(path + "/model.safetensors.index.json"));
  if (report.has_weights) {
    CADRE_ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(path));
    report.spec = dir.spec();
    report.has_tokenizer = dir.has_tokenizer();
    report.fingerprint = dir.Fingerprint();
    report.bytes_by_dtype = dir.BytesByDType();
    report.weight_files = dir.WeightFiles();
    report.skipped_tensors = dir.skipped().names;
    report.skipped_bytes = dir.skipped().bytes;
  } else {
    const std::string file = folder ? path + "/config.json" : path;
    CADRE_ASSIGN_OR_RETURN(const std::string config, ReadFile(file));
    absl::StatusOr<ModelSpec> spec = ParseModelSpec(config);
    if (!spec.ok()) return Annotate(spec.status(), file);
    report.spec = *std::move(spec);
    report.has_tokenizer = folder && Exists(path + "/tokenizer.json");
  }
  FillFromSpec(report);
  if (!report.has_weights) {
    report.warnings.push_back("no weights here: only config.json was read");
  }
  if (!options.lora_targets.empty()) {
    LoraOptions lora;
    lora.rank = options.lora_rank;
    lora.alpha = 2.0 * static_cast<double>(options.lora_rank);
    lora.targets = options.lora_targets;
    CADRE_ASSIGN_OR_RETURN(LoraPlan plan, PlanLora(report.spec, lora));
    report.lora_parameters = plan.num_parameters();
    report.lora_matches = std::move(plan.matches);
    report.warnings.insert(report.warnings.end(), plan.warnings.begin(),
                           plan.warnings.end());
  }
  return report;
}

}  // namespace cadre
