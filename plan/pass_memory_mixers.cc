// What token mixers take: follows worker/model/*_mixer.cc and indexer.cc.

#include <cstdint>
#include <variant>

#include "plan/pass_walk.h"

namespace cadre::pass_memory_internal {

void Pass::Mixer(const KdaSpec& kda, bool backward) {
  const int64_t n = kda.num_heads, d = kda.head_dim, D = spec_.hidden_size;
  const char* const parts[] = {"self_attn.q_proj", "self_attn.k_proj",
                               "self_attn.v_proj"};
  if (!backward) {
    for (const char* part : parts) {
      Save({T_, n * d});
      Forward(part, D);
    }
    FakeScope scope(&scratch_);
    // q, k and v behind the convolutions; in a replay also what the norm made.
    for (int i = 0; i < 3; ++i) replay_ ? Save({T_, n * d}) : Take({T_, n * d});
    if (replay_) Save({T_, n * d});
    Save({T_, d});
    Save({T_, n * d});
    Save({T_, n});
    Forward("self_attn.forget_gate.f_a_proj", D);
    Forward("self_attn.forget_gate.f_b_proj", d);
    Forward("self_attn.b_proj", D);
    Save({T_, n * d});
    if (kda.full_rank_output_gate) {
      Save({T_, n * d});
      Forward("self_attn.g_proj", D);
    } else {
      Save({T_, d});
      if (replay_) Save({T_, n * d});
      Forward("self_attn.g_a_proj", D);
      Forward("self_attn.g_b_proj", d);
    }
    Forward("self_attn.o_proj", n * d);
    return;
  }
  FakeScope scope(&scratch_);
  const int made_again = replay_ ? 0 : kda.full_rank_output_gate ? 1 : 2;
  for (int i = 0; i < made_again + 3; ++i) Take({T_, n * d});
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
  const int64_t projected = channels + (grouped ? values : 0);
  if (!backward) {
    Save({T_, projected});
    Save({T_, heads});
    Save({T_, heads});
    FakeScope scope(&scratch_);
    if (grouped) {
      Take({T_, 2 * heads});
      Forward("linear_attn.in_proj_qkvz", D);
      Forward("linear_attn.in_proj_ba", D);
    } else {
      Save({T_, values});
      for (const char* part : split) Forward(part, D);
    }
    // q, k and v behind the convolutions; in a replay also what the norm made.
    for (const int64_t width : {keys, keys, values})
      replay_ ? Save({T_, width}) : Take({T_, width});
    Save({T_, values});
    if (replay_) Save({T_, values});
    Forward("linear_attn.out_proj", values);
    return;
  }
  FakeScope scope(&scratch_);
  if (!replay_) Take({T_, values});
  Take({T_, values});
  Take({T_, values});
  Take({T_, projected});
  if (!grouped) Take({T_, values});
  Backward("linear_attn.out_proj", values);
  Take({T_, keys});
  Take({T_, keys});
  Take({T_, values});
  Take({T_, heads});
  Take({T_, heads});
  if (!replay_) {
    Take({T_, keys});
    Take({T_, keys});
  }
  if (grouped) {
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

}  // namespace cadre::pass_memory_internal
