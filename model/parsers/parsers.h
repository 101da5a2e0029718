#ifndef CADRE_MODEL_PARSERS_PARSERS_H_
#define CADRE_MODEL_PARSERS_PARSERS_H_

// One function per model family: the text part of a config.json becomes the
// blocks of a ModelSpec (models.md section 5). What all families share
// (hidden size, vocabulary, norm epsilon, refusals) is read by ParseModelSpec
// before. Errors and warnings go to config.problems(); each returns a spec with
// as many blocks as num_hidden_layers whatever is wrong.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/json_config.h"
#include "model/model_spec.h"

namespace cadre {

void ParseKimiLinear(JsonConfig& config, ModelSpec& spec);
void ParseKimiK3(JsonConfig& config, ModelSpec& spec);
void ParseGlm5Next(JsonConfig& config, ModelSpec& spec);
void ParseDeepseekV3(JsonConfig& config, ModelSpec& spec);
void ParseDeepseekV32(JsonConfig& config, ModelSpec& spec);
void ParseGlmMoeDsa(JsonConfig& config, ModelSpec& spec);
void ParseQwen3Moe(JsonConfig& config, ModelSpec& spec);
void ParseQwen3Next(JsonConfig& config, ModelSpec& spec);
void ParseQwen35Moe(JsonConfig& config, ModelSpec& spec);

// ---- pieces that several families share (parsers/common.cc) ----------------

struct CommonDefaults {
  int64_t hidden_size, vocab_size, num_layers;
  double norm_eps;
};
// Hidden size, vocabulary, norm epsilon, positions; makes the blocks. Refuses
// biases, dropout and the like.
void ReadCommon(JsonConfig& config, const CommonDefaults& defaults,
                ModelSpec& spec);

int64_t NumExperts(JsonConfig& config, int64_t fallback);

// "silu" or an error.
ActivationSpec ReadSwiGlu(JsonConfig& config);

// One flag per layer: true where `list_name` (if given) says `yes`, false where
// it says `no`; other words are errors. Nothing if the list is absent or wrong.
std::optional<std::vector<bool>> ReadLayerList(JsonConfig& config,
                                               const char* list_name,
                                               std::vector<std::string> yes,
                                               std::vector<std::string> no,
                                               size_t num_layers);

// The same from a string such as "FSSF", or a list of its letters.
std::optional<std::vector<bool>> ReadLayerPattern(JsonConfig& config,
                                                  const char* name, char yes,
                                                  char no, size_t num_layers);

// mlp_layer_types, else the first `first_dense` layers are dense. True: MoE.
std::vector<bool> ReadSparseLayers(JsonConfig& config, size_t num_layers,
                                   int64_t first_dense);

// rope_parameters and its older forms.
struct RopeOptions {
  int64_t dim = 0;  // full width of a head
  bool interleaved = false;
  // Default of partial_rotary_factor; unset: heads are rotated whole.
  std::optional<double> partial;
  bool mrope = false;  // mrope_section may be there (text: no effect)
};
RopeSpec ReadRope(JsonConfig& config, const RopeOptions& options);

// (nope + rope)^-1/2 with yarn's factor.
double MlaSoftmaxScale(JsonConfig& config, const MlaSpec& mla);

struct MlaDefaults {
  int64_t num_heads, q_lora_rank, kv_lora_rank, qk_nope, qk_rope, v_dim;
  bool q_lora_required = false;
};
// Everything but rope, softmax scale and indexer.
MlaSpec ReadMla(JsonConfig& config, const MlaDefaults& defaults);

struct SigmoidMoeDefaults {
  int64_t num_experts, top_k, expert_width;
  int64_t num_groups = 1, topk_groups = 1;
  double scaling = 1.0;
};
// Sigmoid router with correction bias, shared experts of width I * n_shared.
MoeSpec ReadSigmoidMoe(JsonConfig& config, const SigmoidMoeDefaults& defaults,
                       const ActivationSpec& activation);

struct SoftmaxMoeDefaults {
  int64_t num_experts, top_k, expert_width;
  bool renormalize;
};
MoeSpec ReadSoftmaxMoe(JsonConfig& config, const SoftmaxMoeDefaults& defaults,
                       const ActivationSpec& activation);

// indexer_types, else index_topk_pattern, else the frequency rule.
std::vector<IndexerSpec::Kind> ReadIndexerKinds(JsonConfig& config,
                                                size_t num_layers,
                                                int64_t default_frequency);

// quantization_config: FP8 in blocks of 128 or (for kimi_k3) MXFP4 experts.
void ReadQuantization(JsonConfig config, bool allow_mxfp4, ModelSpec& spec);

}  // namespace cadre

#endif  // CADRE_MODEL_PARSERS_PARSERS_H_
