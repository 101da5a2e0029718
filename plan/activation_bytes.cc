#include "plan/activation_bytes.h"

#include <algorithm>
#include <variant>

#include "kernels/common/delta_kernels.h"

namespace cadre {
namespace {

int64_t Streams(const ModelSpec& model) {
  const auto* hyper = std::get_if<HyperConnections>(&model.residual);
  return hyper == nullptr ? 1 : hyper->multiplicity;
}

// Heads of linear attention; `gates`: a decay for each key channel.
struct RecurrentHeads {
  double keys, values;  // numbers of heads
  int64_t key_dim, value_dim;
  bool gates;
};

// The copies widened with zeros, in the backward: q, k, z, v, the output's
// gradient and theirs.
double WidenedBytes(const RecurrentHeads& heads) {
  double rows = 0;
  if (heads.key_dim < kChunkedHeadDim)
    rows += 4 * heads.keys + (heads.gates ? 2 * heads.values : 0);
  if (heads.value_dim < kChunkedHeadDim) rows += 3 * heads.values;
  return 2 * kChunkedHeadDim * rows;
}

// Linear attention, which keeps `kept` bytes and brings back `replay`.
void AddRecurrent(const RecurrentHeads& heads, double kept, double replay,
                  const ActivationShape& shape, BlockActivations* out) {
  const auto d = static_cast<double>(std::max(heads.key_dim, heads.value_dim));
  const bool widened =
      DeltaKernelsFor(heads.key_dim, heads.value_dim) == DeltaKernels::kPadded;
  out->mixer_kept += kept + 12 * heads.values;
  // Chunk states are made again inside the backward, head group by head group.
  out->mixer_replay += replay;
  out->mixer_live += 6 * heads.values * d + 10 * heads.values * d +
                     17 * (widened ? kChunkedHeadDim : d) *
                         std::min<double>(heads.values, shape.kda_head_group);
  if (widened) out->mixer_live += WidenedBytes(heads);
}

struct AddMixer {
  const ActivationShape& shape;
  BlockActivations* out;

  void operator()(const KdaSpec& kda) const {
    const double width = static_cast<double>(kda.num_heads * kda.head_dim);
    AddRecurrent({.keys = static_cast<double>(kda.num_heads),
                  .values = static_cast<double>(kda.num_heads),
                  .key_dim = kda.head_dim,
                  .value_dim = kda.head_dim,
                  .gates = true},
                 10 * width, 12 * width, shape, out);
  }
  void operator()(const GdnSpec& gdn) const {
    const auto keys = static_cast<double>(gdn.num_key_heads * gdn.key_head_dim);
    const auto values =
        static_cast<double>(gdn.num_value_heads * gdn.value_head_dim);
    AddRecurrent({.keys = static_cast<double>(gdn.num_key_heads),
                  .values = static_cast<double>(gdn.num_value_heads),
                  .key_dim = gdn.key_head_dim,
                  .value_dim = gdn.value_head_dim,
                  .gates = false},
                 4 * keys + 6 * values, 4 * keys + 8 * values, shape, out);
  }
  void operator()(const MlaSpec& mla) const {
    const double h = mla.num_heads;
    const double latent = mla.kv_lora_rank + mla.qk_rope_dim;
    const double qk = mla.qk_nope_dim + mla.qk_rope_dim;
    const double gate = mla.output_gate ? 2 * h * mla.v_dim : 0.0;
    if (!mla.indexer.has_value()) {
      const double bytes = 2 * h * (2 * qk + 2 * mla.v_dim) + 2 * latent + gate;
      out->mixer_kept += bytes;
      out->mixer_replay += bytes;
      out->mixer_live += bytes;
      return;
    }
    const double bytes = h * (2 * latent + 2 * mla.v_dim + 4) + 2 * latent +
                         2 * mla.q_lora_rank + gate;
    out->mixer_kept += bytes;
    out->mixer_replay += bytes;
    out->mixer_live += 7 * latent * h + 4 * latent;
    // A layer that shares its indices keeps none of its own.
    if (mla.indexer->kind == IndexerSpec::Kind::kFull) {
      out->routing += SparseIndexBytes(*mla.indexer, shape.longest_document);
    }
  }
  void operator()(const GqaSpec& gqa) const {
    const double d = gqa.head_dim;
    double bytes =
        2 * (2 * gqa.num_heads + 2 * gqa.num_kv_heads) * d + 4 * gqa.num_heads;
    if (gqa.output_gate) bytes += 2 * gqa.num_heads * d;
    out->mixer_kept += bytes;
    out->mixer_replay += bytes;
    out->mixer_live += bytes;
  }
};

}  // namespace

double SparseIndexBytes(const IndexerSpec& indexer, int64_t longest_document) {
  const double ids =
      static_cast<double>(indexer.topk) * (longest_document <= 65536 ? 2 : 4);
  return std::min(longest_document / 8.0, ids);
}

double ResidualBankBytes(const ModelSpec& model) {
  const auto* bank = std::get_if<AttentionResiduals>(&model.residual);
  if (bank == nullptr || bank->block_size < 1) return 0.0;
  const int64_t blocks = static_cast<int64_t>(model.blocks.size());
  return 2.0 * model.hidden_size *
         ((blocks + bank->block_size - 1) / bank->block_size);
}

BlockActivations ActivationsOf(const ModelSpec& model, const BlockSpec& block,
                               const ActivationShape& shape) {
  const double d = model.hidden_size;
  BlockActivations out;
  out.residual_kept = 2 * d * Streams(model);
  out.residual_live = 4 * d * Streams(model);
  // The normed input of the mixer.
  out.mixer_kept = out.mixer_replay = 2 * d;
  std::visit(AddMixer{shape, &out}, block.mixer);
  if (const auto* mlp = std::get_if<DenseMlpSpec>(&block.ffn)) {
    out.ffn_kept = 2 * d + 6.0 * mlp->width;
    out.ffn_live = 6.0 * mlp->width;
    return out;
  }
  const MoeSpec& moe = std::get<MoeSpec>(block.ffn);
  const double dr = moe.latent_dim > 0 ? moe.latent_dim : d;
  const double rows = shape.expert_rows_per_token;
  out.ffn_kept = (4 * dr + 6 * moe.expert_width) * rows;
  out.ffn_live = (2 * dr + 6 * moe.expert_width) * rows;
  if (moe.shared_width > 0) {
    out.ffn_kept += 2 * d + 6.0 * moe.shared_width;
    out.ffn_live += 6.0 * moe.shared_width;
  }
  out.routing += 6.0 * moe.top_k;
  // A norm behind the combine needs its input, and a replay stops before it.
  if (moe.latent_norm) out.routing += 2 * dr;
  return out;
}

}  // namespace cadre
