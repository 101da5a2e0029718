#ifndef CADRE_MODEL_INSPECT_H_
#define CADRE_MODEL_INSPECT_H_

// What `cadre inspect` shows of a model: layers, sizes, LoRA targets. Plain
// values; pure apart from reading the directory.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"

namespace cadre {

// Publishers count differently; docs/model_sizes.md compares.
struct ParameterCounts {
  int64_t total = 0;
  // Used by one token: everything but the experts that are not chosen and the
  // embedding table (a look-up of one row). The head is included.
  int64_t active = 0;
  int64_t routed_experts = 0;
  // Embedding table and head; one and the same where they are tied.
  int64_t embedding = 0, head = 0;
  bool tied = false;

  int64_t dense() const { return total - routed_experts; }
  // Without the two vocabulary matrices.
  int64_t total_in_layers() const {
    return total - embedding - (tied ? 0 : head);
  }
  int64_t active_in_layers() const { return active - head; }
};
// Buffers are not counted.
ParameterCounts CountParameters(const ModelSpec& spec);

// What some publishers state: with the multi-token-prediction layers that the
// config names, and with the embedding table among the active ones. Such a
// layer is one more block (of the shape of the last block with softmax
// attention and, in a sparse model, experts), a projection [H, 2H] and three
// norms; it shares embedding and head. The same as `CountParameters` in total
// where the config names none.
struct PublishedCounts {
  int64_t mtp_layers = 0;
  int64_t total = 0;
  int64_t active = 0;
};
PublishedCounts CountAsPublished(const ModelSpec& spec);

struct LayerReport {
  int layer = 0;
  std::string mixer, ffn;            // kinds: "kda", "moe", ...
  std::string mixer_dims, ffn_dims;  // "32 heads x 128", ...
  ParameterCounts parameters;
};

struct InspectReport {
  std::string path;
  ModelSpec spec;
  ParameterCounts parameters;
  PublishedCounts published;
  std::vector<LayerReport> layers;
  std::vector<std::string> lora_target_names;
  std::vector<LoraTargetMatch> lora_matches;  // of the targets asked for
  int64_t lora_parameters = 0;
  std::vector<std::string> warnings;
  // Only where weights were found.
  bool has_weights = false;
  bool has_tokenizer = false;
  std::string fingerprint;
  std::map<std::string, int64_t> bytes_by_dtype;
  std::vector<std::string> weight_files;
  std::vector<std::string> skipped_tensors;
  int64_t skipped_bytes = 0;
};

struct InspectOptions {
  std::vector<std::string> lora_targets;  // empty: names only, no plan
  int64_t lora_rank = 16;
};

// `path`: a model directory, or a bare config.json (also a directory that holds
// nothing else), in which case only what the config says is reported.
absl::StatusOr<InspectReport> InspectModel(const std::string& path,
                                           const InspectOptions& options);

// For people: a summary, runs of equal layers, LoRA targets, warnings.
std::string RenderInspectText(const InspectReport& report);
// One JSON object, keys in snake_case.
std::string RenderInspectJson(const InspectReport& report);

}  // namespace cadre

#endif  // CADRE_MODEL_INSPECT_H_
