#include "worker/model/pass_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

// Position of each token in its document; padding counts on from 0.
std::vector<int32_t> Positions(const Batch& batch) {
  std::vector<int32_t> out(batch.ids.size());
  const auto& cu = batch.cu_seqlens;
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    for (int32_t t = cu[d]; t < cu[d + 1]; ++t) out[t] = t - cu[d];
  }
  for (size_t t = cu.back(); t < out.size(); ++t) {
    out[t] = static_cast<int32_t>(t) - cu.back();
  }
  return out;
}

Tensor HostView(const std::vector<int32_t>& v) {
  return Tensor(const_cast<int32_t*>(v.data()), DType::kI32,
                {static_cast<int64_t>(v.size())});
}

}  // namespace

absl::Status CheckBatch(const Batch& batch) {
  const int64_t T = batch.num_tokens();
  const auto& cu = batch.cu_seqlens;
  if (static_cast<int64_t>(batch.targets.size()) != T || cu.empty() ||
      cu.front() != 0 || cu.back() > T) {
    return absl::InternalError(absl::StrCat(
        "batch of ", T, " ids, ", batch.targets.size(), " targets and ",
        cu.size(), " document bounds does not fit together"));
  }
  return absl::OkStatus();
}

absl::Status PassInputs::Place(const Batch& batch, Arena* kept) {
  positions_ = Positions(batch);
  mask_.assign(batch.ids.size(), 1);
  std::fill(mask_.begin() + batch.num_real_tokens(), mask_.end(), 0);
  const std::pair<const std::vector<int32_t>*, Tensor*> tables[] = {
      {&batch.ids, &ids_},
      {&batch.targets, &targets_},
      {&batch.cu_seqlens, &cu_seqlens_},
      {&positions_, &positions_view_},
      {&mask_, &mask_view_}};
  if (exec_.backend == Backend::kCpu) {
    for (const auto& [table, view] : tables) *view = HostView(*table);
    return absl::OkStatus();
  }
  // One copy; the last pass has read the staging memory, its results are here.
  const auto padded = [](const std::vector<int32_t>& v) {
    return (static_cast<int64_t>(v.size()) + 63) / 64 * 64;
  };
  int64_t elements = 0;
  for (const auto& [table, view] : tables) elements += padded(*table);
  CADRE_ASSIGN_OR_RETURN(char* const staged,
                         staging_.Take(elements * SizeOf(DType::kI32)));
  const Tensor all = kept->Allocate(DType::kI32, {elements});
  CADRE_RETURN_IF_ERROR(kept->status());
  int64_t at = 0;
  for (const auto& [table, view] : tables) {
    const auto size = static_cast<int64_t>(table->size());
    std::memcpy(staged + at * SizeOf(DType::kI32), table->data(),
                size * SizeOf(DType::kI32));
    *view = all.Rows(at, at + size);
    at += padded(*table);
  }
  return CopyToDeviceAsync(exec_, staged, all);
}

}  // namespace cadre
