#ifndef CADRE_MODEL_MODEL_SPEC_H_
#define CADRE_MODEL_MODEL_SPEC_H_

// What a model is, for Cadre: a list of blocks from a small vocabulary. A
// Hugging Face config.json is parsed into this description ("operator
// mapping"); everything behind it (runtime, planner, inspect) reads only this
// and never a model_type. A new architecture is a parser table and a table of
// tensor names, not a class.
//
// Plain values, no invariants beyond what ParseModelSpec checks; thread-safe to
// read. Letters in comments: H hidden, n heads, d head width, E experts.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

// ---- token mixers ----------------------------------------------------------

// Kimi delta attention: a decay per key channel.
struct KdaSpec {
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // key and value width
  int64_t conv_kernel = 4;
  // Set: g = bound * sigmoid(exp(A_log) z). Unset: g = -exp(A_log) softplus(z).
  std::optional<double> gate_lower_bound;
  // False: output gate W_gb W_ga x. True (kimi_k3): one full-rank g_proj.
  bool full_rank_output_gate = false;
};

// Gated DeltaNet: one decay per value head.
struct GdnSpec {
  int64_t num_key_heads = 0, num_value_heads = 0;
  int64_t key_head_dim = 0, value_head_dim = 0;
  int64_t conv_kernel = 4;
  // How the input projections are stored.
  enum class Projections {
    kGroupedQkvzBa,  // qwen3_next: in_proj_qkvz, in_proj_ba, by key head
    kSplitQkvZBA,    // qwen3_5_moe: in_proj_qkv, in_proj_z, _b, _a
  } projections = Projections::kGroupedQkvzBa;
};

struct RopeSpec {
  double theta = 10000.0;
  int64_t dim = 0;           // rotated width, even
  bool interleaved = false;  // pairs (2i, 2i+1), written half-split
  // "default" or "yarn". yarn's numbers are resolved by the parser: inverse
  // frequencies and the factor on cos and sin come from these.
  enum class Type { kDefault, kYarn } type = Type::kDefault;
  double yarn_factor = 1.0;
  double yarn_original_max_positions = 0.0;
  double yarn_beta_fast = 32.0, yarn_beta_slow = 1.0;
  bool yarn_truncate = true;
  double attention_factor = 1.0;  // multiplies cos and sin
};

// How the keys of a sparse layer are chosen (DSA).
struct IndexerSpec {
  enum class Kind {
    kFull,    // has an indexer of its own
    kShared,  // reuses the choice of the nearest full layer before it
  } kind = Kind::kFull;
  int64_t num_heads = 0, head_dim = 0;
  int64_t topk = 0;   // keys per query
  int64_t kpool = 0;  // > 0: gated pools of that many tokens; 0: single tokens
  // Rope on the first rope.dim dims of index queries and keys; unset: none.
  std::optional<RopeSpec> rope;
};

// Multi-head latent attention.
struct MlaSpec {
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;  // 0: q_proj instead of q_a/q_b
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_dim = 0, qk_rope_dim = 0, v_dim = 0;
  double latent_norm_eps = 1e-6;
  double softmax_scale = 0.0;    // (nope + rope)^-1/2, yarn's factor included
  std::optional<RopeSpec> rope;  // unset: the rope dims are not rotated
  bool output_gate = false;      // kimi_k3: concat(o) * sigmoid(g_proj x)
  std::optional<IndexerSpec> indexer;  // unset: dense
};

// Grouped-query attention (qwen).
struct GqaSpec {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  bool output_gate = false;  // q_proj holds [q | gate] per head
  double softmax_scale = 0.0;
  RopeSpec rope;
};

using MixerSpec = std::variant<KdaSpec, GdnSpec, MlaSpec, GqaSpec>;

// ---- feed-forward ----------------------------------------------------------

struct ActivationSpec {
  enum class Kind {
    kSwiGlu,         // silu(g) u
    kClampedSwiGlu,  // g <= limit, |u| <= limit first
    kSiTu,           // beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/..)
  } kind = Kind::kSwiGlu;
  double limit = 0.0;
  double beta = 0.0, linear_beta = 0.0;
};

struct DenseMlpSpec {
  int64_t width = 0;
  ActivationSpec activation;
};

struct RouterSpec {
  enum class Score { kSigmoid, kSoftmax } score = Score::kSigmoid;
  bool correction_bias = false;  // choose on score + bias
  int64_t num_groups = 1, topk_groups = 1;
  bool renormalize = true;
  double renormalize_eps = 0.0;  // 1e-20 for the sigmoid routers
  double scaling = 1.0;
  // > 0: coefficient of the auxiliary load-balance loss (models.md 2.8).
  double aux_loss_coef = 0.0;
};

struct MoeSpec {
  int64_t num_experts = 0, top_k = 0;
  int64_t expert_width = 0;
  // Width of the shared expert; 0: none.
  int64_t shared_width = 0;
  bool shared_gate = false;  // qwen: times sigmoid(shared_expert_gate x)
  // > 0: experts see W_down x of this width (kimi_k3, latent MoE).
  int64_t latent_dim = 0;
  bool latent_norm = false;
  RouterSpec router;
  ActivationSpec activation;
  // How routed experts lie in the checkpoint.
  enum class Storage { kPlain, kMxfp4 } storage = Storage::kPlain;
};

using FfnSpec = std::variant<DenseMlpSpec, MoeSpec>;

// ---- the whole -------------------------------------------------------------

struct BlockSpec {
  MixerSpec mixer;
  FfnSpec ffn;
};

struct PlainResidual {};
struct HyperConnections {  // glm5_next
  int64_t multiplicity = 0;
  double eps = 1e-6;
  int64_t sinkhorn_iters = 20;
};
struct AttentionResiduals {  // kimi_k3
  int64_t block_size = 0;
};
using ResidualSpec =
    std::variant<PlainResidual, HyperConnections, AttentionResiduals>;

struct ModelSpec {
  std::string model_type;  // as in config.json, for messages and tensor names
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // 0: not stated
  double norm_eps = 1e-6;
  bool norm_one_plus_weight = false;  // qwen3_next: x_hat * (1 + w)
  bool tie_word_embeddings = false;
  // This embedding row never gets a gradient; -1: none.
  int64_t pad_token_id = -1;
  // "model.", "model.language_model." or "language_model.model.".
  std::string tensor_prefix;
  // quantization_config says fp8: matrices may be stored F8_E4M3 with one scale
  // per 128 x 128 block (models.md 1.2).
  bool fp8_blocks = false;
  // Multi-token-prediction layers that the config names beside the blocks. They
  // are neither read nor trained; only `cadre inspect` counts them.
  int64_t num_mtp_layers = 0;
  ResidualSpec residual = PlainResidual{};
  std::vector<BlockSpec> blocks;
  // What the parser wants a person to know (a default no published model
  // uses, a field that is ignored and why).
  std::vector<std::string> warnings;
};

// Parses the text of a config.json. INVALID_ARGUMENT names the field and what
// is supported; a field that would change the maths is never ignored.
absl::StatusOr<ModelSpec> ParseModelSpec(absl::string_view config_json);

// model_type values that ParseModelSpec accepts, sorted.
std::vector<std::string> SupportedModelTypes();

// Short names for reports and plans: "kda", "gdn", "mla", "dsa" (an MLA with an
// indexer), "gqa"; "dense_mlp", "moe".
const char* MixerKindName(const MixerSpec& mixer);
const char* FfnKindName(const FfnSpec& ffn);

}  // namespace cadre

#endif  // CADRE_MODEL_MODEL_SPEC_H_
