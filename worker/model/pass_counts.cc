#include "worker/model/pass_counts.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/router/router.h"
#include "plan/capacity.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// Takes tensors' numbers one after the other from where they were copied to.
class NumberReader {
 public:
  explicit NumberReader(const char* at) : at_(at) {}

  template <typename T>
  std::vector<T> Take(const Tensor& part) {
    std::vector<T> numbers(part.num_elements());
    std::memcpy(numbers.data(), at_, part.num_bytes());
    at_ += part.num_bytes();
    return numbers;
  }

 private:
  const char* at_;
};

// Rows that fill the tiles of grouped products.
int64_t PaddingRows(const std::vector<int32_t>& offsets, int64_t tile) {
  int64_t padding = 0;
  for (size_t e = 1; e < offsets.size(); ++e) {
    const int64_t rows = offsets[e] - offsets[e - 1];
    padding += (rows + tile - 1) / tile * tile - rows;
  }
  return padding;
}

ExpertTraffic TakeTraffic(ExpertRuntime* experts) {
  ExpertTraffic traffic = std::exchange(experts->traffic, {});
  traffic.exposed_seconds = experts->queue.TakeExposedSeconds();
  const auto busy = experts->queue.TakeBusySeconds();
  traffic.dispatch_seconds = busy[static_cast<size_t>(ExchangeKind::kDispatch)];
  traffic.combine_seconds = busy[static_cast<size_t>(ExchangeKind::kCombine)];
  return traffic;
}

}  // namespace

PassCounts::PassCounts(const ModelSpec& spec, const ModelOptions& options)
    : exec_(options.exec),
      dtype_(options.dtype),
      moe_(options.moe),
      staging_(options.exec, "results of a pass") {
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      num_experts_ = moe->num_experts;
      top_k_ = moe->top_k;
      aux_coef_ = moe_.aux_loss_coef.value_or(moe->router.aux_loss_coef);
    }
  }
}

absl::Status PassCounts::Begin(const Batch& batch, Arena* kept) {
  totals_ = kept->AllocateZero(DType::kF64, {3});
  routers_ = {};
  num_real_tokens_ = batch.num_real_tokens();
  if (moe_.z_loss_coef > 0 && num_experts_ > 0) {
    routers_.z_sum = totals_.Rows(2, 3);
  }
  const int64_t tokens = batch.num_tokens();
  if (moe_.overflow != OverflowPolicy::kDropless && tokens > 0 &&
      num_experts_ > 0) {
    routers_.overflow = moe_.overflow;
    CADRE_ASSIGN_OR_RETURN(
        routers_.capacity,
        ExpertCapacity({.tokens = tokens,
                        .top_k = top_k_,
                        .num_experts = num_experts_,
                        .capacity_factor = moe_.capacity_factor}));
  }
  if (aux_coef_ > 0) {
    routers_.aux = {.counts = kept->AllocateZero(DType::kI64, {num_experts_}),
                    .prob_sum = kept->AllocateZero(DType::kF64, {num_experts_}),
                    .num_rows = kept->AllocateZero(DType::kI64, {1})};
  }
  return absl::OkStatus();
}

absl::Status PassCounts::SumOverRanks(double aux_weight, Communicator* world) {
  const bool aux = routers_.aux.counts.present();
  if (!aux && !routers_.z_sum.present()) return absl::OkStatus();
  std::vector<int64_t> sums(num_experts_ + 2, 0);  // counts, rows, tokens
  if (aux && world != nullptr) {
    CADRE_RETURN_IF_ERROR(CopyToHost(exec_, routers_.aux.counts, sums.data()));
    CADRE_RETURN_IF_ERROR(
        CopyToHost(exec_, routers_.aux.num_rows, &sums[num_experts_]));
  }
  sums.back() = num_real_tokens_;
  if (world != nullptr) {
    CADRE_RETURN_IF_ERROR(world->AllReduceSum(absl::MakeSpan(sums)));
  }
  inv_tokens_ = sums.back() > 0 ? 1.0 / static_cast<double>(sums.back()) : 0.0;
  routers_.z_coefficient = moe_.z_loss_coef * aux_weight * inv_tokens_;
  if (!aux || world == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(CopyToDevice(exec_, sums.data(), routers_.aux.counts));
  return CopyToDevice(exec_, &sums[num_experts_], routers_.aux.num_rows);
}

absl::StatusOr<const char*> PassCounts::Fetch(PhaseClock* phases) {
  std::vector<Tensor> parts = {totals_};
  parts.insert(parts.end(), routers_.expert_tokens.begin(),
               routers_.expert_tokens.end());
  parts.insert(parts.end(), routers_.overflow_counts.begin(),
               routers_.overflow_counts.end());
  for (const auto& batch : routers_.expert_batches) {
    parts.push_back(batch.offsets);
  }
  int64_t bytes = 0;
  for (const Tensor& part : parts) bytes += part.num_bytes();
  CADRE_ASSIGN_OR_RETURN(char* const begin, staging_.Take(bytes));
  char* at = begin;
  for (const Tensor& part : parts) {
    CADRE_RETURN_IF_ERROR(CopyToHostAsync(exec_, part, at));
    at += part.num_bytes();
  }
  // Ends the last phase.
  phases->Enter(Phase::kLoss);
  CADRE_RETURN_IF_ERROR(Synchronize(exec_));
  return begin;
}

absl::StatusOr<ForwardResult> PassCounts::Read(PhaseClock* phases,
                                               ExpertRuntime* experts) {
  if (routers_.aux.counts.present()) {
    CADRE_RETURN_IF_ERROR(
        RouterAuxLoss(exec_, routers_.aux, totals_.Rows(1, 2)));
  }
  CADRE_ASSIGN_OR_RETURN(const char* const numbers, Fetch(phases));
  NumberReader reader(numbers);
  ForwardResult result;
  result.phases = phases->Seconds();
  result.backward_seconds = phases->backward_seconds();
  const std::vector<double> totals = reader.Take<double>(totals_);
  result.loss_sum = totals[0];
  result.aux_loss = totals[1];
  result.z_loss = totals[2] * inv_tokens_;
  for (const Tensor& part : routers_.expert_tokens) {
    result.expert_tokens.push_back(reader.Take<int64_t>(part));
    MoeLayerCounts& counts = result.moe_counts.emplace_back();
    counts.capacity = routers_.capacity;
    for (int64_t n : result.expert_tokens.back()) counts.routed += n;
  }
  for (size_t layer = 0; layer < routers_.overflow_counts.size(); ++layer) {
    const auto counts = reader.Take<int64_t>(routers_.overflow_counts[layer]);
    result.moe_counts[layer].dropped = counts[kDroppedPairs];
    std::copy_n(counts.begin() + kRemappedPairs, kRemapRounds,
                result.moe_counts[layer].remapped.begin());
  }
  const int64_t tile = GroupedGemmTileRows(exec_, dtype_);
  for (const auto& [layer, offsets] : routers_.expert_batches) {
    result.moe_counts[layer].padding_rows +=
        PaddingRows(reader.Take<int32_t>(offsets), tile);
  }
  if (experts != nullptr) result.traffic = TakeTraffic(experts);
  return result;
}

}  // namespace cadre
