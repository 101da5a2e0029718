#include "worker/model/tiny_models.h"

#include <cmath>
#include <random>
#include <variant>

#include "absl/strings/match.h"
#include "base/logging.h"

namespace cadre::testing {
namespace {

ModelSpec Base(const std::string& model_type) {
  ModelSpec spec;
  spec.model_type = model_type;
  spec.hidden_size = 12;
  spec.vocab_size = 29;
  spec.norm_eps = 1e-5;
  spec.tensor_prefix = "model.";
  return spec;
}

KdaSpec Kda(bool bounded) {
  KdaSpec kda;
  kda.num_heads = 2;
  kda.head_dim = 5;
  if (bounded) kda.gate_lower_bound = -5.0;
  return kda;
}

MlaSpec Mla(int64_t q_rank, int64_t rope_dim) {
  MlaSpec mla;
  mla.num_heads = 3;
  mla.q_lora_rank = q_rank;
  mla.kv_lora_rank = 7;
  mla.qk_nope_dim = 6;
  mla.qk_rope_dim = rope_dim;
  mla.v_dim = 5;
  mla.softmax_scale = 1 / std::sqrt(6.0 + static_cast<double>(rope_dim));
  return mla;
}

RopeSpec Rope(int64_t dim, bool interleaved) {
  RopeSpec rope;
  rope.dim = dim;
  rope.interleaved = interleaved;
  return rope;
}

GqaSpec Gqa(bool gate, int64_t rope_dim) {
  GqaSpec gqa;
  gqa.num_heads = 4;
  gqa.num_kv_heads = 2;
  gqa.head_dim = 6;
  gqa.output_gate = gate;
  gqa.softmax_scale = 1 / std::sqrt(6.0);
  gqa.rope = Rope(rope_dim, false);
  return gqa;
}

GdnSpec Gdn(GdnSpec::Projections projections) {
  GdnSpec gdn;
  gdn.num_key_heads = 2;
  gdn.num_value_heads = 4;
  gdn.key_head_dim = 5;
  gdn.value_head_dim = 3;
  gdn.projections = projections;
  return gdn;
}

DenseMlpSpec Dense(ActivationSpec activation = {}) {
  return {.width = 14, .activation = activation};
}

MoeSpec SigmoidMoe(ActivationSpec activation = {}) {
  MoeSpec moe;
  moe.num_experts = 8;
  moe.top_k = 3;
  moe.expert_width = 9;
  moe.shared_width = 10;
  moe.router.correction_bias = true;
  moe.router.renormalize_eps = 1e-20;
  moe.router.scaling = 2.446;
  moe.activation = activation;
  return moe;
}

MoeSpec SoftmaxMoe(bool renormalize, bool shared) {
  MoeSpec moe;
  moe.num_experts = 8;
  moe.top_k = 3;
  moe.expert_width = 9;
  moe.shared_width = shared ? 10 : 0;
  moe.shared_gate = shared;
  moe.router.score = RouterSpec::Score::kSoftmax;
  moe.router.renormalize = renormalize;
  moe.router.aux_loss_coef = 0.05;
  return moe;
}

IndexerSpec IndexerOf(IndexerSpec::Kind kind, int64_t kpool) {
  IndexerSpec indexer;
  indexer.kind = kind;
  indexer.num_heads = 3;
  indexer.head_dim = 6;
  indexer.topk = 4;
  indexer.kpool = kpool;
  return indexer;
}

ModelSpec KimiLinear() {
  ModelSpec spec = Base("kimi_linear");
  spec.blocks = {{Kda(false), Dense()},
                 {Kda(false), SigmoidMoe()},
                 {Mla(0, 4), SigmoidMoe()}};
  return spec;
}

ModelSpec Glm5Next() {
  ModelSpec spec = Base("glm5_next");
  spec.tensor_prefix = "model.language_model.";
  spec.residual =
      HyperConnections{.multiplicity = 3, .eps = 1e-6, .sinkhorn_iters = 4};
  const ActivationSpec clamped{.kind = ActivationSpec::Kind::kClampedSwiGlu,
                               .limit = 0.6};
  MlaSpec mla = Mla(8, 0);
  mla.latent_norm_eps = spec.norm_eps;
  mla.indexer = IndexerOf(IndexerSpec::Kind::kFull, 2);
  spec.blocks = {{Kda(true), Dense(clamped)}, {mla, SigmoidMoe(clamped)}};
  return spec;
}

ModelSpec DeepSeekV3() {
  ModelSpec spec = Base("deepseek_v3");
  MlaSpec mla = Mla(8, 4);
  mla.rope = Rope(4, true);
  mla.rope->type = RopeSpec::Type::kYarn;
  mla.rope->yarn_factor = 4;
  mla.rope->yarn_original_max_positions = 64;
  mla.rope->attention_factor = 1.04;
  MoeSpec moe = SigmoidMoe();
  moe.router.num_groups = 4;
  moe.router.topk_groups = 2;
  moe.router.renormalize = false;
  spec.blocks = {{mla, Dense()}, {mla, moe}};
  return spec;
}

ModelSpec GlmMoeDsa() {
  ModelSpec spec = Base("glm_moe_dsa");
  MlaSpec mla = Mla(8, 4);
  mla.rope = Rope(4, true);
  mla.indexer = IndexerOf(IndexerSpec::Kind::kFull, 0);
  mla.indexer->rope = Rope(4, true);
  MlaSpec shared = mla;
  shared.indexer = IndexerOf(IndexerSpec::Kind::kShared, 0);
  spec.blocks = {{mla, Dense()},
                 {shared, SigmoidMoe()},
                 {shared, SigmoidMoe()},
                 {mla, SigmoidMoe()}};
  return spec;
}

ModelSpec Qwen3Moe() {
  ModelSpec spec = Base("qwen3_moe");
  spec.tie_word_embeddings = true;
  spec.pad_token_id = 2;
  spec.blocks = {{Gqa(false, 6), SoftmaxMoe(false, false)},
                 {Gqa(false, 6), SoftmaxMoe(false, false)}};
  return spec;
}

ModelSpec Qwen3Next(GdnSpec::Projections projections) {
  ModelSpec spec = Base("qwen3_next");
  spec.norm_one_plus_weight = true;
  spec.blocks = {{Gdn(projections), SoftmaxMoe(true, true)},
                 {Gqa(true, 2), SoftmaxMoe(true, true)}};
  return spec;
}

ModelSpec KimiK3() {
  ModelSpec spec = Base("kimi_k3");
  spec.tensor_prefix = "language_model.model.";
  spec.residual = AttentionResiduals{.block_size = 2};
  const ActivationSpec situ{
      .kind = ActivationSpec::Kind::kSiTu, .beta = 4, .linear_beta = 25};
  KdaSpec kda = Kda(true);
  kda.full_rank_output_gate = true;
  MlaSpec mla = Mla(8, 4);
  mla.output_gate = true;
  MoeSpec moe = SigmoidMoe(situ);
  moe.latent_dim = 7;
  moe.latent_norm = true;
  spec.blocks = {
      {kda, Dense(situ)}, {kda, moe}, {mla, moe}, {kda, moe}, {mla, moe}};
  return spec;
}

std::mt19937_64 GeneratorFor(uint64_t seed, const std::string& name) {
  std::seed_seq sequence(name.begin(), name.end());
  std::mt19937_64 of_name(sequence);
  return std::mt19937_64(of_name() + seed);
}

void Set(const Tensor& t, int64_t i, double value) {
  if (t.dtype() == DType::kF64) {
    t.data<double>()[i] = value;
  } else {
    t.data<float>()[i] = static_cast<float>(value);
  }
}

}  // namespace

std::vector<TinyModel> TinyModels() {
  return {{"KimiLinear", KimiLinear()},
          {"Glm5Next", Glm5Next()},
          {"DeepSeekV3", DeepSeekV3()},
          {"GlmMoeDsa", GlmMoeDsa()},
          {"Qwen3Moe", Qwen3Moe()},
          {"Qwen3Next", Qwen3Next(GdnSpec::Projections::kGroupedQkvzBa)},
          {"Qwen35Moe", Qwen3Next(GdnSpec::Projections::kSplitQkvZBA)},
          {"KimiK3", KimiK3()}};
}

ModelSpec TinyModelNamed(const std::string& name) {
  for (TinyModel& model : TinyModels()) {
    if (model.name == name) return std::move(model.spec);
  }
  CADRE_CHECK(false);
  return {};
}

void Randomize(Model* model, uint64_t seed) {
  const bool one_plus = model->spec().norm_one_plus_weight;
  for (Parameter* p : model->parameters().all()) {
    std::mt19937_64 bits = GeneratorFor(seed, p->name);
    std::normal_distribution<double> normal;
    double mean = 0, deviation = 0.3;
    if (absl::EndsWith(p->name, "e_score_correction_bias")) {
      deviation = 0.05;  // moves choices, yet leaves no expert without tokens
    } else if (absl::EndsWith(p->name, "A_log")) {
      deviation = 0.5;
    } else if (absl::EndsWith(p->name, "dt_bias")) {
      mean = -1;
    } else if (absl::StrContains(p->name, "norm") && p->value.rank() == 1) {
      const bool offset =
          one_plus && !absl::StrContains(p->name, "linear_attn.norm");
      mean = offset || absl::EndsWith(p->name, "bias") ? 0 : 1;
      deviation = 0.1;
    } else if (absl::StrContains(p->name, "embed_tokens")) {
      deviation = 1;
    } else if (p->value.rank() >= 2) {
      const int64_t in = p->value.dim(p->value.rank() - 1);
      deviation = 1.2 / std::sqrt(static_cast<double>(in));
    }
    // The whole tensor is drawn, whatever part of it is here.
    int64_t rows = 1, width = p->value.num_elements();
    if (!p->rows.empty()) {
      rows = p->global_shape[0];
      width /= p->value.dim(0);
    }
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> drawn(width);
      for (double& v : drawn) v = mean + deviation * normal(bits);
      for (int64_t held = 0; held == 0 || held < std::ssize(p->rows); ++held) {
        if (!p->rows.empty() && p->rows[held].index != row) continue;
        for (int64_t i = 0; i < width; ++i) {
          Set(p->value, held * width + i, drawn[i]);
        }
      }
    }
  }
}

Batch RandomBatch(const ModelSpec& spec, const std::vector<int>& lengths,
                  int padding, uint64_t seed) {
  Batch batch;
  batch.cu_seqlens = {0};
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::mt19937_64 bits(seed * 1000 + d);
    std::uniform_int_distribution<int32_t> token(
        0, static_cast<int32_t>(spec.vocab_size) - 1);
    for (int i = 0; i < lengths[d]; ++i) {
      batch.ids.push_back(token(bits));
      if (i > 0) batch.targets.push_back(batch.ids.back());
    }
    if (lengths[d] > 0) batch.targets.push_back(Batch::kIgnore);
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  batch.ids.insert(batch.ids.end(), padding, 0);
  batch.targets.insert(batch.targets.end(), padding, Batch::kIgnore);
  return batch;
}

double AuxCoefficient(const ModelSpec& spec) {
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      return moe->router.aux_loss_coef;
    }
  }
  return 0;
}

double At(const Tensor& t, int64_t i) {
  return t.dtype() == DType::kF64 ? t.data<double>()[i] : t.data<float>()[i];
}

LoraOptions AdaptEverything() {
  LoraOptions options;
  options.rank = 2;
  options.alpha = 3;
  options.targets = {"all-linear", "expert_gate"};
  return options;
}

}  // namespace cadre::testing
