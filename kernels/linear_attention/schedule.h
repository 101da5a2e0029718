#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SCHEDULE_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_SCHEDULE_H_

// How the kernels of a pass share the device's multiprocessors. Private to
// kernels/{kda,gdn}. Pure functions, no CUDA.

#include <algorithm>
#include <cstdint>

namespace cadre::linear_attention {

// Microseconds on an H200, whose ratio alone counts: of a multiprocessor for a
// prepared tile of KDA and of Gated DeltaNet, and of a scanning block for a
// chunk of its 64 columns. What they take beside each other: alone that is 7.9
// and 1.23, which would let the scan in later than measured best
// (docs/benchmarks.md).
inline constexpr double kPrepareTileCost = 8.5;
inline constexpr double kHeadPrepareTileCost = 5.3;
inline constexpr double kScanChunkCost = 1.8;

struct Overlap {
  int leaving;        // multiprocessors left to the scan
  float leave_share;  // once this share of all tiles is given out
};

// The scan has `scan_blocks`, one a multiprocessor, two for each tile. It is
// let in as early as the blocks that go on preparing can keep ahead of it.
inline Overlap PlanOverlap(int64_t scan_blocks, int multiprocessors,
                           double prepare_tile_cost) {
  const int leaving = static_cast<int>(
      std::min<int64_t>(scan_blocks, std::max(multiprocessors / 2, 1)));
  const int staying = multiprocessors - leaving;
  if (leaving <= 0 || staying <= 0) return {0, 1.0f};
  const double behind =
      2 * kScanChunkCost * staying / (leaving * prepare_tile_cost);
  return {leaving, static_cast<float>(1 - std::min(behind, 1.0))};
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SCHEDULE_H_
