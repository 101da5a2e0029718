#include "plan/memory_budget.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "model/tensor_names.h"
#include "plan/capacity.h"
#include "plan/pass_memory.h"

namespace cadre {
namespace {

class Builder {
 public:
  void Add(const char* name, double bytes) {
    const int64_t rounded = static_cast<int64_t>(std::ceil(bytes));
    if (rounded <= 0) return;
    budget_.terms.push_back({name, rounded});
    budget_.total += rounded;
  }
  MemoryBudget Take() { return std::move(budget_); }

 private:
  MemoryBudget budget_;
};

// Buffers in which parameters that lie whole on several ranks are reduced hold
// that many elements (worker/shard/parameter_lane.h).
constexpr double kLaneElements = int64_t{16} << 20;

// Two neighbouring units are in memory at once: the one in use and the one that
// is prefetched.
double LargestNeighbours(const std::vector<double>& units) {
  double most = units.front();
  for (size_t i = 0; i + 1 < units.size(); ++i) {
    most = std::max(most, units[i] + units[i + 1]);
  }
  return most;
}

// Elements of all buffers that gradients pass through on their way to other
// ranks: whole, and behind them the slice that comes back. `held` is the part
// of the experts that a rank holds, copies included.
double ReducedElements(const ModelCounts& counts, bool full, const Mesh& mesh,
                       double held) {
  const double S = mesh.spec().fsdp_shard_group_size;
  const double edp = mesh.num_expert_replicas();
  const auto lane = [](double elements, double slices) {
    return std::min(elements, kLaneElements) * (1 + 1 / slices);
  };
  double elements = 0.0;
  if (full && S > 1) {
    elements += (1 + 1 / S) *
                *std::max_element(counts.units.begin(), counts.units.end());
  } else if (mesh.spec().world_size > 1) {
    elements += lane(full ? counts.dense : counts.adapter_dense, S);
  }
  if (edp > 1) {
    elements +=
        lane(held * (full ? counts.experts : counts.adapter_experts), edp);
  }
  return elements;
}

void AddActivations(const MemoryRequest& request, const ModelCounts& counts,
                    Builder& out) {
  const ModelSpec& model = *request.model;
  const double tokens = static_cast<double>(request.tokens);
  const ActivationShape shape = {
      .longest_document = request.longest_document > 0
                              ? request.longest_document
                              : request.tokens,
      .expert_rows_per_token = request.imbalance * counts.top_k,
      .kda_head_group = request.constants.kda_head_group};
  // Blocks of tokens go through the feed-forward part one after the other.
  const double share =
      request.constants.ffn_token_block > 0
          ? std::min(1.0, request.constants.ffn_token_block / tokens)
          : 1.0;
  double kept = ResidualBankBytes(model), live = 0.0;
  for (size_t l = 0; l < model.blocks.size(); ++l) {
    const bool replays = static_cast<int>(l) < request.replayed_blocks;
    const BlockActivations a = ActivationsOf(model, model.blocks[l], shape);
    kept += a.residual_kept + a.routing;
    if (!replays) kept += a.mixer_kept + a.ffn_kept;
    // Its backward goes first, while a replayed mixer waits for its own.
    const double ffn = ((replays ? a.ffn_kept : 0.0) + a.ffn_live) * share +
                       (replays ? a.mixer_replay : 0.0);
    const double mixer = (replays ? a.mixer_replay : 0.0) + a.mixer_live;
    live = std::max(live, a.residual_live + std::max(ffn, mixer));
  }
  // The tables are in bytes of bf16.
  const double scale = request.constants.weight_bytes / 2 * tokens;
  out.Add(kKeptTerm, kept * scale);
  out.Add(kLiveTerm, live * scale);
}

// The same, dispatch buffers and logits included, as the engine allocates it.
void AddPass(const MemoryRequest& request, const ModelCounts& counts,
             int64_t slots, Builder& out) {
  const int ranks = request.mesh.expert_parallel_size;
  const PassMemory pass = MeasurePass(
      {.model = request.model,
       .lora = request.lora,
       .tokens = request.tokens,
       .element_bytes = static_cast<int64_t>(request.constants.weight_bytes),
       .replayed_blocks = request.replayed_blocks,
       .rows =
           PlannedRows(request.tokens, counts.top_k, ranks, request.imbalance),
       .dispatch = {.ranks = ranks,
                    .slots_per_rank = slots / ranks,
                    .has_copies = slots > counts.num_experts}});
  out.Add(kKeptTerm, static_cast<double>(pass.kept + pass.saved));
  out.Add(kLiveTerm, static_cast<double>(pass.temporary));
}

}  // namespace

ModelCounts CountModel(const ModelSpec& model, const LoraPlan* lora) {
  ModelCounts out;
  const size_t blocks = model.blocks.size();
  out.units.assign(blocks + 2, 0.0);
  std::vector<double> layer_experts(blocks, 0.0);
  const std::string embedding = model.tensor_prefix + "embed_tokens.weight";
  for (const LogicalTensor& tensor : LogicalTensors(model)) {
    if (tensor.role == LogicalTensor::Role::kBuffer) continue;
    const double n = static_cast<double>(tensor.num_elements());
    if (tensor.role == LogicalTensor::Role::kExperts) {
      out.experts += n;
      layer_experts[tensor.layer] += n;
      continue;
    }
    out.dense += n;
    if (tensor.layer >= 0) {
      out.units[tensor.layer + 1] += n;
    } else if (tensor.name == embedding) {
      out.units.front() += n;
      if (model.tie_word_embeddings) out.units.back() += n;
    } else {
      out.units.back() += n;
    }
  }
  out.head = out.units.back();
  for (size_t l = 0; l < blocks; ++l) {
    const auto* moe = std::get_if<MoeSpec>(&model.blocks[l].ffn);
    if (moe == nullptr) continue;
    out.experts_layer = std::max(out.experts_layer, layer_experts[l]);
    out.num_experts = moe->num_experts;
    out.top_k = moe->top_k;
    out.routed_width = std::max<double>(
        out.routed_width,
        moe->latent_dim > 0 ? moe->latent_dim : model.hidden_size);
    if (moe->storage == MoeSpec::Storage::kMxfp4) {
      out.quantised_experts += layer_experts[l];
    }
  }
  if (lora != nullptr) {
    for (const LoraModule& module : lora->modules) {
      (IsExpertKind(module.kind) ? out.adapter_experts : out.adapter_dense) +=
          static_cast<double>(module.num_parameters());
    }
  }
  return out;
}

MemoryConstants DefaultConstants(MemoryBackend backend, int world_size) {
  if (backend == MemoryBackend::kGpu) {
    return {.context_bytes = world_size > 1 ? 3'000'000'000 : 1'200'000'000};
  }
  return {.weight_bytes = 4,
          .state_bytes = 8,
          .keeps_quantised = false,
          .context_bytes = 64'000'000,
          .follows_arenas = true};
}

absl::StatusOr<MemoryBudget> BudgetMemory(const MemoryRequest& request) {
  CADRE_CHECK(request.model != nullptr);
  const ModelSpec& model = *request.model;
  const MemoryConstants& c = request.constants;
  CADRE_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(request.mesh));
  const ModelCounts n = request.counts != nullptr
                            ? *request.counts
                            : CountModel(model, request.lora);
  const double S = request.mesh.fsdp_shard_group_size;
  const double P = request.mesh.expert_parallel_size;
  const double edp = mesh.num_expert_replicas();
  const int64_t slots =
      n.num_experts == 0 ? 0
                         : n.num_experts + request.mesh.expert_parallel_size *
                                               request.spare_slots_per_rank;
  CADRE_RETURN_IF_ERROR(
      ValidateExpertMesh(mesh, n.num_experts, n.top_k, slots));
  if (request.tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("no memory plan for ", request.tokens, " tokens"));
  }
  // Copies of an expert hold weights; only its home has state.
  const double copies =
      n.num_experts == 0 ? 1.0 : static_cast<double>(slots) / n.num_experts;
  const double sharded = request.shard_experts_over_edp ? edp : 1.0;
  const bool full = request.lora == nullptr;

  Builder out;
  out.Add("dense weights", c.weight_bytes * n.dense / S);
  if (full) {
    out.Add("dense gradients", c.gradient_bytes * n.dense / S);
    out.Add("dense optimizer state", c.state_bytes * n.dense / S);
  }
  const bool quantised = !full && c.keeps_quantised;
  const double stored = quantised ? n.quantised_experts : 0.0;
  const double plain_bytes =
      quantised && model.fp8_blocks ? 1.03 : c.weight_bytes;
  const double expert_weights =
      0.53 * stored + plain_bytes * (n.experts - stored);
  out.Add("expert weights", expert_weights * copies / (P * sharded));
  if (full) {
    out.Add("expert gradients",
            c.gradient_bytes * n.experts * copies / (P * sharded));
    out.Add("expert optimizer state", c.state_bytes * n.experts / (P * edp));
  }
  out.Add("adapter weights",
          c.weight_bytes * (n.adapter_dense + n.adapter_experts * copies / P));
  out.Add(
      "adapter gradients",
      c.gradient_bytes * (n.adapter_dense + n.adapter_experts * copies / P));
  out.Add(
      "adapter optimizer state",
      c.state_bytes * (n.adapter_dense / S + n.adapter_experts / (P * edp)));
  if (S > 1) {
    out.Add("gather buffers", c.weight_bytes * LargestNeighbours(n.units));
  }
  out.Add("reduce buffers",
          c.gradient_bytes * ReducedElements(n, full, mesh, copies / P));
  if (sharded > 1) {
    out.Add("expert gather buffers",
            2 * c.weight_bytes * n.experts_layer * copies / P);
  }
  if (c.follows_arenas) {
    AddPass(request, n, slots, out);
  } else {
    AddActivations(request, n, out);
  }
  if (P > 1 && !c.follows_arenas) {
    const double rows = std::min<double>(
        n.top_k, DedupRowsPerToken(request.mesh.expert_parallel_size, n.top_k));
    out.Add("dispatch buffers", 2 * c.weight_bytes * request.headroom *
                                    request.tokens * rows * n.routed_width);
  }
  if (stored > 0 || (quantised && model.fp8_blocks)) {
    out.Add("dequantisation", 2 * c.weight_bytes * n.experts_layer / P);
  }
  if (!c.follows_arenas) {
    out.Add("logits", c.weight_bytes * model.vocab_size *
                          std::min<int64_t>(c.logits_rows, request.tokens));
  }
  out.Add(kContextTerm, static_cast<double>(c.context_bytes));
  return out.Take();
}

int64_t MemoryBudget::BytesOf(const std::string& name) const {
  for (const BudgetTerm& term : terms) {
    if (term.name == name) return term.bytes;
  }
  return 0;
}

const BudgetTerm& MemoryBudget::Largest() const {
  CADRE_CHECK(!terms.empty());
  return *std::max_element(terms.begin(), terms.end(),
                           [](const BudgetTerm& a, const BudgetTerm& b) {
                             return a.bytes < b.bytes;
                           });
}

}  // namespace cadre
