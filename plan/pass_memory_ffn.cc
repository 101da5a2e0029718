// What feed-forward parts take: follows worker/model/dense_mlp.cc,
// moe_layer.cc, experts.cc, routed_experts.cc and expert_dispatch.cc.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "plan/pass_walk.h"

namespace cadre::pass_memory_internal {
namespace {

constexpr int64_t kOverflowCounts = 10;  // kernels/router/router_overflow.h

}  // namespace

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
  if (!replay_) KeepIds(experts + 1);
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
  const int64_t k = moe.top_k, pairs = rows_[layer_].pairs;
  const int64_t sent = rows_[layer_].sent, received = rows_[layer_].received;
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
  Take({sent, width});
  scratch_.Add(T_ * k * (kIdBytes + r_.element_bytes));
  Take({received, width});
  scratch_.Add(pairs * (kIdBytes + r_.element_bytes));
  shared();
  const int64_t places = received * std::min<int64_t>(k, d.slots_per_rank);
  SaveIds(places);
  Save({places});
  SaveIds(pairs);
  Take({received, width});
  ExpertsForward(moe, pairs, places, d.slots_per_rank, width);
}

void Pass::RoutedBackward(const MoeSpec& moe, int64_t width,
                          const std::function<void()>& shared) {
  const int64_t pairs = rows_[layer_].pairs;
  const int64_t sent = rows_[layer_].sent, received = rows_[layer_].received;
  if (r_.dispatch.ranks == 1) {
    shared();
    return ExpertsBackward(moe, pairs, width);
  }
  const PassRequest::Dispatch& d = r_.dispatch;
  FakeScope scope(&scratch_);
  Take({sent, width});
  Take({received, width});
  shared();
  Take({received, width});
  Take({received * std::min<int64_t>(moe.top_k, d.slots_per_rank)});
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
    KeepCounts(moe.num_experts);
    if (r_.has_capacity) {
      KeepIds(T_ * moe.top_k);
      Keep({T_});
      KeepCounts(kOverflowCounts);
    }
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

}  // namespace cadre::pass_memory_internal
