#ifndef CADRE_MODEL_TENSOR_NAMES_H_
#define CADRE_MODEL_TENSOR_NAMES_H_

// Which tensors a model has, from its ModelSpec alone: logical tensors under
// their reference names (models.md 1.2: fused experts, fused conv1d,
// `forget_gate.`, `attn_hc.`, always `mlp.`), how each is put together from the
// names found in checkpoints, and which Linear modules an adapter can target.
// Pure functions and plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/model_spec.h"

namespace cadre {

// Routed experts in a checkpoint: the tensor of expert e is named
// prefix + e + suffix. gate_up has two suffixes: rows [gate; up].
struct ExpertNaming {
  std::string prefix;
  std::vector<std::string> suffixes;
};

struct LogicalTensor {
  std::string name;  // reference name
  std::vector<int64_t> shape;
  int layer = -1;  // -1: outside the layers
  enum class Role {
    kDense,
    kExperts,  // leading dim is the expert
    kBuffer,   // no parameter: e_score_correction_bias
  } role = Role::kDense;
  // False: never has a gradient and is skipped by the optimizer.
  bool can_have_gradient = true;
  // True: a weight matrix (LoRA-able, quantisable, 2-D per expert). False:
  // norms, vectors, convolutions, biases.
  bool is_matrix = false;
  // Stays float32 on a GPU whatever the weight dtype (models.md 1).
  bool keep_f32 = false;
  // A_log: stored in any shape with this many elements...
  bool any_shape = false;
  // ... or, where > 0, padded with zeros to this many (kimi_k3).
  int64_t padded_elements = 0;

  // Names on disk. Exactly one of the ways must be found; the first is what a
  // new checkpoint uses.
  // The tensor as a whole, first choice first.
  std::vector<std::string> whole_names;
  // Row blocks of equal size, one list of alternatives per block (q, k, v
  // conv1d).
  std::vector<std::vector<std::string>> row_block_names;
  // One matrix per expert.
  std::vector<ExpertNaming> expert_namings;

  int64_t num_elements() const;
};

// Everything the model reads, in model order (embedding, layers, norm, head).
// With tied embeddings there is no lm_head.
std::vector<LogicalTensor> LogicalTensors(const ModelSpec& spec);

// Vision towers, multi-token-prediction layers and the like: not trained, not
// read, kept by a full export.
bool IsSkippedTensor(const ModelSpec& spec, absl::string_view disk_name);

// A Linear module (a matrix that LoRA may target).
struct LinearModule {
  std::string path;       // logical: "model.layers.0.self_attn.q_proj"
  std::string peft_path;  // as PEFT sees it; differs for kimi_k3 only
  std::string name;       // last component: "q_proj"
  int layer = 0;
  int64_t in = 0, out = 0;
  // Indexer Linears have no gradient: listed so that an error can say why.
  bool can_have_gradient = true;
};

// Linear modules of all layers without routed experts and router, model order.
// The head and the embedding are not among them.
std::vector<LinearModule> LinearModules(const ModelSpec& spec);

// The routed experts and the router of one MoE layer.
struct MoeModule {
  std::string path;       // "model.layers.1.mlp"
  std::string peft_path;  // "...block_sparse_moe" for kimi_k3
  int layer = 0;
  int64_t num_experts = 0;
  int64_t in = 0;     // width of an expert's input (latent width for kimi_k3)
  int64_t width = 0;  // I; gate_up is [E, 2I, in], down [E, in, I]
  int64_t router_in = 0;  // H; the router is [E, H]
  // Names of one expert's Linears: {"gate_proj", "up_proj", "down_proj"}, or
  // {"w1", "w3", "w2"} for kimi_k3.
  std::string gate_name, up_name, down_name;
};
std::vector<MoeModule> MoeModules(const ModelSpec& spec);

// "model.layers.3." for layer 3.
std::string LayerPrefix(const ModelSpec& spec, int layer);
// "lm_head.weight" or "language_model.lm_head.weight".
std::string LmHeadName(const ModelSpec& spec);

}  // namespace cadre

#endif  // CADRE_MODEL_TENSOR_NAMES_H_
