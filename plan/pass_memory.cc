#include "plan/pass_memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/tensor_names.h"
#include "plan/capacity.h"
#include "plan/pass_walk.h"

namespace cadre {
namespace pass_memory_internal {
namespace {

constexpr int64_t kLossTokens = 256;  // of logits at a time

}  // namespace

// ---- adapted products ------------------------------------------------------

const LoraModule* Pass::Adapter(absl::string_view name) const {
  if (r_.lora == nullptr) return nullptr;
  return r_.lora->Find(absl::StrCat(LayerPrefix(spec_, layer_), name));
}

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
    if (layer_ < r_.replayed_blocks) saved->ReleaseTo(mark);
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
    if (layer_ < r_.replayed_blocks) {
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

}  // namespace pass_memory_internal

PassMemory MeasurePass(const PassRequest& request) {
  return pass_memory_internal::Pass(request).Run();
}

ExpertRows PlannedRows(int64_t tokens, int64_t top_k, int ranks,
                       double imbalance) {
  const auto all = static_cast<double>(tokens * top_k);
  // Where all experts are, nothing is out of balance.
  if (ranks == 1) return {.pairs = tokens * top_k};
  const double rows =
      std::min(all, static_cast<double>(tokens) *
                        DedupRowsPerToken(ranks, static_cast<int>(top_k)));
  return {.pairs = static_cast<int64_t>(std::ceil(imbalance * all)),
          .sent = static_cast<int64_t>(rows),
          .received = static_cast<int64_t>(imbalance * rows)};
}

bool SeenRows::Add(const std::vector<ExpertRows>& pass) {
  bool news = false;
  int64_t pairs = 0;
  for (const ExpertRows& rows : pass) pairs += rows.pairs;
  if (pairs > most_pairs_) {
    news = true;
    most_pairs_ = pairs;
    fullest_ = pass;
  }
  most_.resize(std::max(most_.size(), pass.size()));
  const auto raise = [&news](int64_t value, int64_t* most) {
    news = news || value > *most;
    *most = std::max(value, *most);
  };
  for (size_t layer = 0; layer < pass.size(); ++layer) {
    raise(pass[layer].pairs, &most_[layer].pairs);
    raise(pass[layer].sent, &most_[layer].sent);
    raise(pass[layer].received, &most_[layer].received);
  }
  return news;
}

PassMemory SeenRows::Measure(PassRequest request) const {
  // Temporaries, and where all is replayed also what is saved, are those of one
  // layer.
  request.layer_rows = most_;
  PassMemory memory = MeasurePass(request);
  if (request.replayed_blocks >=
      static_cast<int>(request.model->blocks.size())) {
    return memory;
  }
  request.layer_rows = fullest_;
  memory.saved = MeasurePass(request).saved;
  return memory;
}

}  // namespace cadre
