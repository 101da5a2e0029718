#include "plan/pass_memory.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

constexpr int64_t kAlignment = 64;      // worker/device/arena.h
constexpr int64_t kLossTokens = 256;    // of logits at a time
constexpr int64_t kIdBytes = 4;         // routing ids and offsets
constexpr int64_t kOverflowCounts = 8;  // at most, of i64

class FakeArena {
 public:
  void Add(int64_t bytes) {
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    peak_ = std::max(peak_, used_);
  }
  int64_t used() const { return used_; }
  void ReleaseTo(int64_t used) { used_ = used; }
  int64_t peak() const { return peak_; }

 private:
  int64_t used_ = 0, peak_ = 0;
};

class FakeScope {
 public:
  explicit FakeScope(FakeArena* arena) : arena_(arena), mark_(arena->used()) {}
  ~FakeScope() { arena_->ReleaseTo(mark_); }
  FakeScope(const FakeScope&) = delete;
  FakeScope& operator=(const FakeScope&) = delete;

 private:
  FakeArena* const arena_;
  const int64_t mark_;
};

// Follows worker/model/model.cc and the layers it calls.
class Pass {
 public:
  explicit Pass(const PassRequest& request)
      : r_(request), spec_(*request.model), T_(request.tokens) {
    if (const auto* hyper = std::get_if<HyperConnections>(&spec_.residual)) {
      streams_ = hyper->multiplicity;
    }
    bank_block_ = 0;
    if (const auto* bank = std::get_if<AttentionResiduals>(&spec_.residual)) {
      bank_block_ = bank->block_size;
    }
  }

  PassMemory Run();

 private:
  using Dims = std::initializer_list<int64_t>;
  int64_t Bytes(Dims dims) const {
    int64_t n = r_.element_bytes;
    for (int64_t d : dims) n *= d;
    return n;
  }
  void Keep(Dims dims) { kept_.Add(Bytes(dims)); }
  void Save(Dims dims) { saved_.Add(Bytes(dims)); }
  void Take(Dims dims) { scratch_.Add(Bytes(dims)); }
  void KeepIds(int64_t n) { kept_.Add(n * kIdBytes); }
  void SaveIds(int64_t n) { saved_.Add(n * kIdBytes); }
  void TakeIds(int64_t n) { scratch_.Add(n * kIdBytes); }

  // The state of the stream, in `arena`.
  void State(FakeArena* arena) {
    arena->Add(Bytes({T_, std::max<int64_t>(streams_, 1), spec_.hidden_size}));
  }

  const LoraModule* Adapter(absl::string_view name) const {
    if (r_.lora == nullptr) return nullptr;
    return r_.lora->Find(absl::StrCat(LayerPrefix(spec_, layer_), name));
  }
  bool Drops() const { return r_.lora != nullptr && r_.lora->dropout > 0; }
  void Forward(absl::string_view name, int64_t in);
  void Backward(absl::string_view name, int64_t in);
  void GroupedForward(absl::string_view name, int64_t rows, int64_t in,
                      bool part_of_wider);
  void GroupedBackward(absl::string_view name, int64_t rows, int64_t in,
                       bool part_of_wider);
  void Norm(int64_t rows) { Save({rows}); }

  void MixerForward(const BlockSpec& block);
  void MixerBackward(const BlockSpec& block);
  void FfnForward(const BlockSpec& block);
  void FfnBackward(const BlockSpec& block);
  void BlockForward(const BlockSpec& block);
  void BlockBackward(const BlockSpec& block);

  void Mixer(const KdaSpec& kda, bool backward);
  void Mixer(const GdnSpec& gdn, bool backward);
  void Mixer(const MlaSpec& mla, bool backward);
  void Mixer(const GqaSpec& gqa, bool backward);
  void Choose(const MlaSpec& mla, const IndexerSpec& indexer);
  void DenseForward(absl::string_view at, int64_t width);
  void DenseBackward(absl::string_view at, int64_t width);
  void MoeForward(const MoeSpec& moe);
  void MoeBackward(const MoeSpec& moe);
  void RoutedForward(const MoeSpec& moe, int64_t width,
                     const std::function<void()>& shared);
  void RoutedBackward(const MoeSpec& moe, int64_t width,
                      const std::function<void()>& shared);
  void ExpertsForward(const MoeSpec& moe, int64_t pairs, int64_t slots,
                      int64_t experts, int64_t width);
  void ExpertsBackward(const MoeSpec& moe, int64_t pairs, int64_t width);
  void MixForward(int64_t rows) {
    Save({T_, rows});
    Save({T_, rows});
  }
  // Rows of the bank that block `layer` reads.
  int64_t BankRows(int layer) const {
    return bank_block_ > 0 ? (layer + bank_block_ - 1) / bank_block_ : 0;
  }

  const PassRequest& r_;
  const ModelSpec& spec_;
  const int64_t T_;
  int64_t streams_ = 0, bank_block_ = 0;
  int layer_ = 0;
  bool replay_ = false;
  FakeArena kept_, saved_, scratch_;
};

// ---- adapted products ------------------------------------------------------

void Pass::Forward(absl::string_view name, int64_t in) {
  const LoraModule* const adapter = Adapter(name);
  if (adapter == nullptr) return;
  Save({T_, adapter->rank});
  FakeScope scope(&scratch_);
  if (Drops()) Take({T_, in});
}

void Pass::Backward(absl::string_view name, int64_t in) {
  const LoraModule* const adapter = Adapter(name);
  if (adapter == nullptr) return;
  FakeScope scope(&scratch_);
  Take({T_, adapter->rank});
  if (!Drops()) return;
  Take({T_, in});
  Take({T_, in});
}

void Pass::GroupedForward(absl::string_view name, int64_t rows, int64_t in,
                          bool part_of_wider) {
  const LoraModule* const adapter = Adapter(name);
  if (adapter == nullptr) return;
  Save({rows, adapter->rank});
  FakeScope scope(&scratch_);
  if (Drops()) Take({rows, in});
  if (part_of_wider) Take({rows, adapter->out});
}

void Pass::GroupedBackward(absl::string_view name, int64_t rows, int64_t in,
                           bool part_of_wider) {
  const LoraModule* const adapter = Adapter(name);
  if (adapter == nullptr) return;
  FakeScope scope(&scratch_);
  if (part_of_wider) Take({rows, adapter->out});
  Take({rows, adapter->rank});
  if (!Drops()) return;
  Take({rows, in});
  Take({rows, in});
}

// ---- mixers ----------------------------------------------------------------

void Pass::Mixer(const KdaSpec& kda, bool backward) {
  const int64_t n = kda.num_heads, d = kda.head_dim, D = spec_.hidden_size;
  const char* const parts[] = {"self_attn.q_proj", "self_attn.k_proj",
                               "self_attn.v_proj"};
  if (!backward) {
    for (const char* part : parts) {
      Save({T_, n * d});
      Forward(part, D);
    }
    for (int i = 0; i < 3; ++i) Save({T_, n * d});
    Save({T_, d});
    Save({T_, n * d});
    Save({T_, n});
    Forward("self_attn.forget_gate.f_a_proj", D);
    Forward("self_attn.forget_gate.f_b_proj", d);
    Forward("self_attn.b_proj", D);
    Save({T_, n * d});
    Save({T_, n * d});
    if (kda.full_rank_output_gate) {
      Forward("self_attn.g_proj", D);
    } else {
      Save({T_, d});
      Forward("self_attn.g_a_proj", D);
      Forward("self_attn.g_b_proj", d);
    }
    Save({T_, n * d});
    Forward("self_attn.o_proj", n * d);
    return;
  }
  FakeScope scope(&scratch_);
  for (int i = 0; i < 3; ++i) Take({T_, n * d});
  Backward("self_attn.o_proj", n * d);
  if (kda.full_rank_output_gate) {
    Backward("self_attn.g_proj", D);
  } else {
    Take({T_, d});
    Backward("self_attn.g_b_proj", d);
    Backward("self_attn.g_a_proj", D);
  }
  for (int i = 0; i < 4; ++i) Take({T_, n * d});
  Take({T_, n});
  Backward("self_attn.b_proj", D);
  Take({T_, d});
  Backward("self_attn.forget_gate.f_b_proj", d);
  Backward("self_attn.forget_gate.f_a_proj", D);
  for (const char* part : parts) Backward(part, D);
}

void Pass::Mixer(const GdnSpec& gdn, bool backward) {
  const int64_t D = spec_.hidden_size, heads = gdn.num_value_heads;
  const int64_t keys = gdn.num_key_heads * gdn.key_head_dim;
  const int64_t values = heads * gdn.value_head_dim;
  const int64_t channels = 2 * keys + values;
  const bool grouped = gdn.projections == GdnSpec::Projections::kGroupedQkvzBa;
  const char* const split[] = {"linear_attn.in_proj_qkv",
                               "linear_attn.in_proj_z", "linear_attn.in_proj_b",
                               "linear_attn.in_proj_a"};
  if (!backward) {
    Save({T_, channels});
    Save({T_, values});
    Save({T_, heads});
    Save({T_, heads});
    if (grouped) {
      FakeScope scope(&scratch_);
      Take({T_, channels + values});
      Take({T_, 2 * heads});
      Forward("linear_attn.in_proj_qkvz", D);
      Forward("linear_attn.in_proj_ba", D);
    } else {
      for (const char* part : split) Forward(part, D);
    }
    Save({T_, channels});
    for (int i = 0; i < 4; ++i) Save({T_, keys});
    Save({T_, values});
    Save({T_, values});
    Save({T_, values});
    Forward("linear_attn.out_proj", values);
    return;
  }
  FakeScope scope(&scratch_);
  Take({T_, values});
  Take({T_, values});
  Take({T_, channels});
  Take({T_, values});
  Take({T_, heads});
  Take({T_, heads});
  Backward("linear_attn.out_proj", values);
  Take({T_, keys});
  Take({T_, keys});
  Take({T_, values});
  Take({T_, channels});
  if (grouped) {
    Take({T_, channels + values});
    Take({T_, 2 * heads});
    Backward("linear_attn.in_proj_qkvz", D);
    Backward("linear_attn.in_proj_ba", D);
  } else {
    for (const char* part : split) Backward(part, D);
  }
}

void Pass::Choose(const MlaSpec& mla, const IndexerSpec& indexer) {
  if (indexer.kind == IndexerSpec::Kind::kShared || replay_) return;
  const int64_t row =
      indexer.kpool > 0 ? indexer.topk + indexer.kpool - 1 : indexer.topk;
  KeepIds(T_ * row);
  KeepIds(T_);
  FakeScope scope(&scratch_);
  Take({T_, indexer.num_heads * indexer.head_dim});
  Take({T_, indexer.head_dim});
  Take({T_, indexer.num_heads});
  Forward("self_attn.indexer.wq_b", mla.q_lora_rank);
  Forward("self_attn.indexer.wk", spec_.hidden_size);
  if (indexer.kpool > 0) Take({T_, indexer.head_dim});
}

void Pass::Mixer(const MlaSpec& mla, bool backward) {
  const int64_t n = mla.num_heads, D = spec_.hidden_size;
  const int64_t qk = mla.qk_nope_dim + mla.qk_rope_dim, v = mla.v_dim;
  const int64_t latent = mla.kv_lora_rank, rope = mla.qk_rope_dim;
  const int64_t q_rank = mla.q_lora_rank;
  if (!backward) {
    Save({T_, n * qk});
    if (q_rank == 0) {
      Forward("self_attn.q_proj", D);
    } else {
      Save({T_, q_rank});
      Save({T_, q_rank});
      Forward("self_attn.q_a_proj", D);
      Norm(T_);
      Forward("self_attn.q_b_proj", q_rank);
    }
    Save({T_, latent});
    Save({T_, latent});
    Save({T_, n * qk});
    Save({T_, n * v});
    {
      FakeScope scope(&scratch_);
      Take({T_, latent + rope});
      Forward("self_attn.kv_a_proj_with_mqa", D);
      Norm(T_);
      if (rope > 0) Take({T_, rope});
      Take({T_, n * (mla.qk_nope_dim + v)});
      Forward("self_attn.kv_b_proj", latent);
    }
    if (mla.indexer) Choose(mla, *mla.indexer);
    Save({T_, n * v});
    Save({T_, n});
    if (mla.output_gate) {
      Save({T_, n * v});
      Save({T_, n * v});
      Forward("self_attn.g_proj", D);
    }
    Forward("self_attn.o_proj", n * v);
    return;
  }
  FakeScope scope(&scratch_);
  Take({T_, n * v});
  Backward("self_attn.o_proj", n * v);
  if (mla.output_gate) {
    Take({T_, n * v});
    Backward("self_attn.g_proj", D);
  }
  Take({T_, n * qk});
  Take({T_, n * qk});
  Take({T_, n * v});
  if (q_rank == 0) {
    Backward("self_attn.q_proj", D);
  } else {
    Take({T_, q_rank});
    Backward("self_attn.q_b_proj", q_rank);
    Backward("self_attn.q_a_proj", D);
  }
  Take({T_, n * (mla.qk_nope_dim + v)});
  Take({T_, latent});
  Backward("self_attn.kv_b_proj", latent);
  Take({T_, latent + rope});
  if (rope > 0) Take({T_, rope});
  Backward("self_attn.kv_a_proj_with_mqa", D);
}

void Pass::Mixer(const GqaSpec& gqa, bool backward) {
  const int64_t D = spec_.hidden_size, q = gqa.num_heads * gqa.head_dim;
  const int64_t kv = gqa.num_kv_heads * gqa.head_dim;
  if (!backward) {
    Save({T_, q});
    Save({T_, kv});
    Save({T_, q});
    Save({T_, kv});
    Save({T_, kv});
    if (gqa.output_gate) {
      Save({T_, q});
      FakeScope scope(&scratch_);
      Take({T_, 2 * q});
      Forward("self_attn.q_proj", D);
    } else {
      Forward("self_attn.q_proj", D);
    }
    Forward("self_attn.k_proj", D);
    Forward("self_attn.v_proj", D);
    Norm(T_ * gqa.num_heads);
    Norm(T_ * gqa.num_kv_heads);
    Save({T_, q});
    Save({T_, gqa.num_heads});
    if (gqa.output_gate) Save({T_, q});
    Forward("self_attn.o_proj", q);
    return;
  }
  FakeScope scope(&scratch_);
  Take({T_, q});
  Take({T_, q});
  Backward("self_attn.o_proj", q);
  Take({T_, q});
  Take({T_, kv});
  Take({T_, kv});
  if (gqa.output_gate) Take({T_, 2 * q});
  Backward("self_attn.q_proj", D);
  Backward("self_attn.k_proj", D);
  Backward("self_attn.v_proj", D);
}

void Pass::MixerForward(const BlockSpec& block) {
  std::visit([this](const auto& mixer) { Mixer(mixer, false); }, block.mixer);
}
void Pass::MixerBackward(const BlockSpec& block) {
  std::visit([this](const auto& mixer) { Mixer(mixer, true); }, block.mixer);
}

// ---- feed-forward ----------------------------------------------------------

void Pass::DenseForward(absl::string_view at, int64_t width) {
  for (int i = 0; i < 3; ++i) Save({T_, width});
  Forward(absl::StrCat(at, ".gate_proj"), spec_.hidden_size);
  Forward(absl::StrCat(at, ".up_proj"), spec_.hidden_size);
  Forward(absl::StrCat(at, ".down_proj"), width);
}

void Pass::DenseBackward(absl::string_view at, int64_t width) {
  FakeScope scope(&scratch_);
  for (int i = 0; i < 3; ++i) Take({T_, width});
  Backward(absl::StrCat(at, ".down_proj"), width);
  Backward(absl::StrCat(at, ".gate_proj"), spec_.hidden_size);
  Backward(absl::StrCat(at, ".up_proj"), spec_.hidden_size);
}

void Pass::ExpertsForward(const MoeSpec& moe, int64_t pairs, int64_t slots,
                          int64_t experts, int64_t width) {
  const int64_t F = moe.expert_width;
  SaveIds(experts + 1);
  SaveIds(slots);
  SaveIds(slots);
  Save({pairs, width});
  Save({pairs, width});
  Save({pairs, 2 * F});
  Save({pairs, F});
  GroupedForward("mlp.experts.gate_up_proj", pairs, width, false);
  GroupedForward("mlp.experts.gate_proj", pairs, width, true);
  GroupedForward("mlp.experts.up_proj", pairs, width, true);
  GroupedForward("mlp.experts.down_proj", pairs, F, false);
}

void Pass::ExpertsBackward(const MoeSpec& moe, int64_t pairs, int64_t width) {
  const int64_t F = moe.expert_width;
  FakeScope scope(&scratch_);
  Take({pairs, width});
  Take({pairs, width});
  Take({pairs, F});
  GroupedBackward("mlp.experts.down_proj", pairs, F, false);
  Take({pairs, 2 * F});
  GroupedBackward("mlp.experts.gate_up_proj", pairs, width, false);
  GroupedBackward("mlp.experts.gate_proj", pairs, width, true);
  GroupedBackward("mlp.experts.up_proj", pairs, width, true);
}

void Pass::RoutedForward(const MoeSpec& moe, int64_t width,
                         const std::function<void()>& shared) {
  const int64_t k = moe.top_k, pairs = r_.expert_pairs;
  if (r_.dispatch.ranks == 1) {
    ExpertsForward(moe, pairs, T_ * k, moe.num_experts, width);
    return shared();
  }
  const PassRequest::Dispatch& d = r_.dispatch;
  const int64_t fan = std::min<int64_t>(k, d.ranks);
  FakeScope scope(&scratch_);
  TakeIds(T_ * k);
  SaveIds(T_ * k);
  TakeIds(T_ * k);
  TakeIds(T_ * fan);
  if (d.has_copies) {
    TakeIds(moe.num_experts + 1);
    TakeIds(T_ * k);
    TakeIds(T_ * k);
  }
  // Chunks have about equal parts of everything, so their sums do.
  SaveIds(T_ * fan);
  SaveIds(T_ * fan);
  SaveIds(T_ * k);
  TakeIds(T_ * k);
  Take({d.sent_rows, width});
  scratch_.Add(T_ * k * (kIdBytes + r_.element_bytes));
  Take({d.received_rows, width});
  scratch_.Add(pairs * (kIdBytes + r_.element_bytes));
  shared();
  const int64_t places =
      d.received_rows * std::min<int64_t>(k, d.slots_per_rank);
  SaveIds(places);
  Save({places});
  SaveIds(pairs);
  Take({d.received_rows, width});
  ExpertsForward(moe, pairs, places, d.slots_per_rank, width);
}

void Pass::RoutedBackward(const MoeSpec& moe, int64_t width,
                          const std::function<void()>& shared) {
  const int64_t pairs = r_.expert_pairs;
  if (r_.dispatch.ranks == 1) {
    shared();
    return ExpertsBackward(moe, pairs, width);
  }
  const PassRequest::Dispatch& d = r_.dispatch;
  FakeScope scope(&scratch_);
  Take({d.sent_rows, width});
  Take({d.received_rows, width});
  shared();
  Take({d.received_rows, width});
  Take({d.received_rows * std::min<int64_t>(moe.top_k, d.slots_per_rank)});
  Take({pairs});
  Take({T_ * moe.top_k});
  ExpertsBackward(moe, pairs, width);
}

void Pass::MoeForward(const MoeSpec& moe) {
  const int64_t D = spec_.hidden_size, latent = moe.latent_dim;
  FakeScope scope(&scratch_);
  if (moe.shared_width > 0) Take({T_, D});
  Save({T_, moe.num_experts});
  Forward("mlp.gate", D);
  if (!replay_) {
    KeepIds(T_ * moe.top_k);
    Keep({T_, moe.top_k});
    kept_.Add(moe.num_experts * 8);
    // With a capacity: ids and sums behind it.
    kept_.Add(kOverflowCounts * 8);
  }
  // qwen has one shared expert, the others a list.
  const char* const at =
      moe.shared_gate ? "mlp.shared_expert" : "mlp.shared_experts";
  const auto shared = [&] {
    if (moe.shared_width == 0) return;
    if (moe.shared_gate) {
      Save({T_, D});
      Save({T_, 1});
      Forward("mlp.shared_expert_gate", D);
    }
    DenseForward(at, moe.shared_width);
  };
  if (latent == 0) return RoutedForward(moe, D, shared);
  Save({T_, latent});
  Save({T_, latent});
  Forward("mlp.routed_expert_down_proj", D);
  RoutedForward(moe, latent, shared);
  if (moe.latent_norm) {
    Save({T_, latent});
    Norm(T_);
  }
  Forward("mlp.routed_expert_up_proj", latent);
}

void Pass::MoeBackward(const MoeSpec& moe) {
  const int64_t D = spec_.hidden_size, latent = moe.latent_dim;
  const char* const at =
      moe.shared_gate ? "mlp.shared_expert" : "mlp.shared_experts";
  const auto shared = [&] {
    if (moe.shared_width == 0) return;
    FakeScope scope(&scratch_);
    if (moe.shared_gate) {
      Take({T_, D});
      Take({T_, 1});
    }
    DenseBackward(at, moe.shared_width);
    if (moe.shared_gate) Backward("mlp.shared_expert_gate", D);
  };
  FakeScope scope(&scratch_);
  Take({T_, moe.top_k});
  if (latent == 0) {
    RoutedBackward(moe, D, shared);
  } else {
    Take({T_, latent});
    Take({T_, latent});
    Backward("mlp.routed_expert_up_proj", latent);
    RoutedBackward(moe, latent, shared);
    Backward("mlp.routed_expert_down_proj", D);
  }
  FakeScope router(&scratch_);
  Take({T_, moe.num_experts});
  Backward("mlp.gate", D);
}

void Pass::FfnForward(const BlockSpec& block) {
  if (const auto* dense = std::get_if<DenseMlpSpec>(&block.ffn)) {
    DenseForward("mlp", dense->width);
  } else {
    MoeForward(std::get<MoeSpec>(block.ffn));
  }
}

void Pass::FfnBackward(const BlockSpec& block) {
  if (const auto* dense = std::get_if<DenseMlpSpec>(&block.ffn)) {
    DenseBackward("mlp", dense->width);
  } else {
    MoeBackward(std::get<MoeSpec>(block.ffn));
  }
}

// ---- blocks ----------------------------------------------------------------

void Pass::BlockForward(const BlockSpec& block) {
  const int64_t D = spec_.hidden_size, m = streams_;
  State(&saved_);  // between mixer and feed-forward part
  const auto site = [&](bool mixer) {
    if (m > 0) {
      Save({T_, D});
      Save({T_, m});
      Save({T_, m});
      Save({T_, m, m});
      Save({T_, (2 + m) * m});
      Save({T_});
      Save({T_, D});
    } else if (bank_block_ > 0) {
      const int64_t rows = BankRows(mixer ? layer_ : layer_ + 1);
      if (rows > 0) {
        Save({T_, D});
        MixForward(rows + 1);
      }
    }
    Save({T_, D});  // the normed input
    Norm(T_);
    mixer ? MixerForward(block) : FfnForward(block);
  };
  site(true);
  site(false);
}

void Pass::BlockBackward(const BlockSpec& block) {
  const int64_t D = spec_.hidden_size, m = streams_;
  const auto site = [&](bool mixer) {
    FakeScope scope(&scratch_);
    Take({T_, D});
    if (m > 0) {
      Take({T_, D});
      Take({T_, m});
      Take({T_, m, m});
    }
    mixer ? MixerBackward(block) : FfnBackward(block);
    if (m > 0) Take({T_, (2 + m) * m});
  };
  site(false);
  site(true);
}

PassMemory Pass::Run() {
  const int64_t D = spec_.hidden_size;
  const int layers = static_cast<int>(spec_.blocks.size());
  State(&kept_);
  for (layer_ = 0; layer_ < layers; ++layer_) {
    State(&kept_);
    FakeArena* const saved = &saved_;
    const int64_t mark = saved->used();
    BlockForward(spec_.blocks[layer_]);
    if (r_.replays_blocks) saved->ReleaseTo(mark);
  }
  const int64_t bank = BankRows(layers);
  if (streams_ > 0 || bank_block_ > 0) Save({T_, D});
  if (bank_block_ > 0) MixForward(bank + 1);
  Save({T_, D});
  Norm(T_);
  // The gradient lies below all else.
  Take({T_, D});
  {
    FakeScope scope(&scratch_);
    Take({std::min(T_, kLossTokens), spec_.vocab_size});
  }
  if (streams_ > 0) State(&scratch_);
  if (bank_block_ > 0) {
    for (int64_t i = 0; i <= bank; ++i) Take({T_, D});
  }
  for (layer_ = layers - 1; layer_ >= 0; --layer_) {
    FakeScope scope(&saved_);
    if (r_.replays_blocks) {
      replay_ = true;
      State(&saved_);
      BlockForward(spec_.blocks[layer_]);
    }
    BlockBackward(spec_.blocks[layer_]);
  }
  return {.kept = kept_.peak(),
          .saved = saved_.peak(),
          .temporary = scratch_.peak()};
}

}  // namespace

PassMemory MeasurePass(const PassRequest& request) {
  return Pass(request).Run();
}

}  // namespace cadre
