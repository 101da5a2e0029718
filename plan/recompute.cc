#include "plan/recompute.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

struct MixerOutput {
  int64_t longest_document;
  RecomputeItem operator()(const KdaSpec& kda) const {
    return Item(kda.num_heads * kda.head_dim, 5.5 * kda.head_dim);
  }
  RecomputeItem operator()(const GdnSpec& gdn) const {
    return Item(gdn.num_value_heads * gdn.value_head_dim,
                5.5 * gdn.value_head_dim);
  }
  RecomputeItem operator()(const MlaSpec& mla) const {
    if (mla.indexer.has_value()) {
      // The latent output, before it is brought to the width of a value.
      return Item(mla.num_heads * mla.kv_lora_rank,
                  static_cast<double>(mla.indexer->topk) *
                      (2 * mla.kv_lora_rank + mla.qk_rope_dim) /
                      mla.kv_lora_rank);
    }
    const double qk = mla.qk_nope_dim + mla.qk_rope_dim;
    return Item(mla.num_heads * mla.v_dim,
                0.5 * longest_document * (qk + mla.v_dim) / mla.v_dim);
  }
  RecomputeItem operator()(const GqaSpec& gqa) const {
    return Item(gqa.num_heads * gqa.head_dim, 1.0 * longest_document);
  }

 private:
  static RecomputeItem Item(int64_t width, double value) {
    return {.what = "mixer output",
            .bytes_per_token = 2.0 * width,
            .flops_per_byte = value};
  }
};

}  // namespace

std::vector<RecomputeItem> RecomputeItems(const ModelSpec& model,
                                          const ActivationShape& shape) {
  std::vector<RecomputeItem> items;
  for (const LinearModule& linear : LinearModules(model)) {
    const std::string prefix = LayerPrefix(model, linear.layer);
    items.push_back({.what = linear.path.substr(prefix.size()),
                     .layer = linear.layer,
                     .bytes_per_token = 2.0 * linear.out,
                     .flops_per_byte = static_cast<double>(linear.in)});
  }
  for (size_t l = 0; l < model.blocks.size(); ++l) {
    RecomputeItem output =
        std::visit(MixerOutput{shape.longest_document}, model.blocks[l].mixer);
    output.layer = static_cast<int>(l);
    items.push_back(output);
    if (const auto* moe = std::get_if<MoeSpec>(&model.blocks[l].ffn)) {
      items.push_back(
          {.what = "expert pre-activation",
           .layer = static_cast<int>(l),
           .bytes_per_token =
               4.0 * moe->expert_width * shape.expert_rows_per_token,
           .flops_per_byte = static_cast<double>(
               moe->latent_dim > 0 ? moe->latent_dim : model.hidden_size)});
    }
  }
  std::sort(items.begin(), items.end(),
            [](const RecomputeItem& a, const RecomputeItem& b) {
              return std::make_tuple(-a.flops_per_byte, a.layer, a.what) <
                     std::make_tuple(-b.flops_per_byte, b.layer, b.what);
            });
  return items;
}

absl::StatusOr<RecomputeChoice> ChooseRecompute(const MemoryRequest& request,
                                                int64_t rank_bytes,
                                                bool allow_selective) {
  MemoryRequest wanted = request;
  wanted.recompute = RecomputePolicy::kNone;
  CADRE_ASSIGN_OR_RETURN(const MemoryBudget none, BudgetMemory(wanted));
  if (none.total <= rank_bytes) {
    return RecomputeChoice{.policy = RecomputePolicy::kNone};
  }
  RecomputeChoice choice;
  if (!allow_selective) return choice;
  wanted.recompute = RecomputePolicy::kFull;
  CADRE_ASSIGN_OR_RETURN(const MemoryBudget full, BudgetMemory(wanted));
  // Bytes per token that are left, in units of 2-byte elements.
  const double left = static_cast<double>(rank_bytes - full.total) /
                      request.tokens * 2 / request.constants.weight_bytes;
  int64_t top_k = 0;
  for (const BlockSpec& block : request.model->blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) top_k = moe->top_k;
  }
  const ActivationShape shape = {
      .longest_document = request.longest_document > 0
                              ? request.longest_document
                              : request.tokens,
      .expert_rows_per_token = request.imbalance * top_k};
  for (const RecomputeItem& item : RecomputeItems(*request.model, shape)) {
    if (choice.kept_bytes_per_token + item.bytes_per_token > left) continue;
    choice.kept.push_back(item);
    choice.kept_bytes_per_token += item.bytes_per_token;
  }
  if (!choice.kept.empty()) choice.policy = RecomputePolicy::kSelective;
  return choice;
}

}  // namespace cadre
