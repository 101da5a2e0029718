#include "plan/capacity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace cadre {
namespace {

// ceil that forgives the rounding of a product: 1.1 * 100 is 110, not 111.
int64_t CeilRows(double rows) {
  return static_cast<int64_t>(std::ceil(rows * (1.0 - 1e-12)));
}

int64_t FullExpertRows(const DispatchShape& shape) {
  return shape.num_ranks * shape.tokens *
         std::min(shape.top_k, shape.slots_per_rank);
}

}  // namespace

absl::StatusOr<int64_t> ExpertCapacity(const CapacityOptions& options) {
  if (options.tokens < 1 || options.top_k < 1 || options.num_experts < 1 ||
      options.min_capacity < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no capacity for ", options.tokens, " tokens, ", options.top_k, " of ",
        options.num_experts, " experts and a least capacity of ",
        options.min_capacity, "; all must be at least 1"));
  }
  if (!(options.capacity_factor >= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("moe.capacity_factor is ", options.capacity_factor,
                     "; below 1 even balanced routing would drop tokens"));
  }
  const double wanted = options.capacity_factor * options.tokens *
                        options.top_k / options.num_experts;
  if (wanted >= options.tokens) return options.tokens;
  return std::min(options.tokens,
                  std::max(options.min_capacity, CeilRows(wanted)));
}

double DedupRowsPerToken(int64_t num_destinations, int64_t top_k) {
  const double p = static_cast<double>(num_destinations);
  return p * (1.0 - std::pow(1.0 - 1.0 / p, static_cast<double>(top_k)));
}

double DedupRowsPerTokenExact(int64_t num_destinations, int64_t top_k,
                              int64_t num_experts) {
  // C(E - n, k) / C(E, k) = prod over i < k of (E - n - i) / (E - i).
  const double n = static_cast<double>(num_experts) / num_destinations;
  double missed = 1.0;
  for (int64_t i = 0; i < top_k; ++i) {
    missed *= std::max(0.0, num_experts - n - i) / (num_experts - i);
  }
  return num_destinations * (1.0 - missed);
}

double HeadroomOfRung(const DispatchShape& shape, int rung) {
  CADRE_CHECK(0 <= rung && rung <= kFullRung) << rung;
  if (rung < kFullRung) return kHeadroomLadder[rung];
  return shape.num_ranks / DedupRowsPerToken(shape.num_ranks, shape.top_k);
}

DispatchBounds BoundsAtRung(const DispatchShape& shape, int rung) {
  CADRE_CHECK(0 <= rung && rung <= kFullRung) << rung;
  const int64_t full_rows = shape.num_ranks * shape.tokens;
  DispatchBounds bounds{.segment_rows = shape.tokens,
                        .receive_rows = full_rows,
                        .expert_rows = FullExpertRows(shape)};
  if (rung == kFullRung) return bounds;
  const double headroom = kHeadroomLadder[rung];
  const double mean_rows =
      shape.tokens * DedupRowsPerToken(shape.num_ranks, shape.top_k);
  bounds.segment_rows = std::min(
      bounds.segment_rows, CeilRows(headroom * mean_rows / shape.num_ranks));
  bounds.receive_rows =
      std::min(bounds.receive_rows, CeilRows(headroom * mean_rows));
  bounds.expert_rows = std::min(
      bounds.expert_rows, CeilRows(headroom * shape.tokens * shape.top_k));
  return bounds;
}

DispatchBounds BoundsAtCapacity(const DispatchShape& shape, int64_t capacity) {
  const int64_t from_one = shape.slots_per_rank * capacity;
  DispatchBounds bounds;
  bounds.segment_rows = std::min(shape.tokens, from_one);
  bounds.receive_rows = shape.num_ranks * bounds.segment_rows;
  bounds.expert_rows =
      std::min(FullExpertRows(shape), shape.num_ranks * from_one);
  return bounds;
}

AllToAllBytes DispatchBytes(const DispatchShape& shape, int64_t row_width,
                            int64_t element_bytes) {
  const double p = static_cast<double>(shape.num_ranks);
  AllToAllBytes bytes;
  bytes.payload = shape.tokens *
                  DedupRowsPerToken(shape.num_ranks, shape.top_k) * row_width *
                  element_bytes;
  bytes.metadata = 8.0 * shape.tokens * shape.top_k;
  bytes.wire = bytes.payload * (p - 1.0) / p;
  return bytes;
}

}  // namespace cadre
