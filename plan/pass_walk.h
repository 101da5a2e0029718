#ifndef CADRE_PLAN_PASS_WALK_H_
#define CADRE_PLAN_PASS_WALK_H_

// The walk behind plan/pass_memory.h, private to it: pass_memory.cc walks
// through the blocks, pass_memory_mixers.cc and pass_memory_ffn.cc through
// their two parts. One walk per object and thread.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "model/lora_targets.h"
#include "model/model_spec.h"
#include "plan/pass_memory.h"

namespace cadre::pass_memory_internal {

inline constexpr int64_t kAlignment = 64;  // worker/device/arena.h
inline constexpr int64_t kIdBytes = 4;     // routing ids and offsets
inline constexpr int64_t kCountBytes = 8;  // i64

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
    size_t moe_layers = 0;
    for (const BlockSpec& block : spec_.blocks) {
      const bool moe = std::holds_alternative<MoeSpec>(block.ffn);
      rows_.push_back(moe && moe_layers < r_.layer_rows.size()
                          ? r_.layer_rows[moe_layers]
                          : r_.rows);
      if (moe) ++moe_layers;
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
  void KeepCounts(int64_t n) { kept_.Add(n * kCountBytes); }
  void SaveIds(int64_t n) { saved_.Add(n * kIdBytes); }
  void TakeIds(int64_t n) { scratch_.Add(n * kIdBytes); }

  // The state of the stream, in `arena`.
  void State(FakeArena* arena) {
    arena->Add(Bytes({T_, std::max<int64_t>(streams_, 1), spec_.hidden_size}));
  }

  // Null: none.
  const LoraModule* Adapter(absl::string_view name) const;
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
  std::vector<ExpertRows> rows_;  // by block
  int64_t streams_ = 0, bank_block_ = 0;
  int layer_ = 0;
  bool replay_ = false;
  FakeArena kept_, saved_, scratch_;
};

}  // namespace cadre::pass_memory_internal

#endif  // CADRE_PLAN_PASS_WALK_H_
