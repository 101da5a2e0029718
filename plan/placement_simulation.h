#ifndef CADRE_PLAN_PLACEMENT_SIMULATION_H_
#define CADRE_PLAN_PLACEMENT_SIMULATION_H_

// Balance of expert placements under simulated routing. Pure and repeatable:
// the random numbers are made here (SplitMix64 and Box-Muller), since the
// distributions of the standard library differ between implementations.
// Thread-safe.

#include <cstdint>

#include "absl/status/statusor.h"
#include "plan/expert_placement.h"
#include "plan/load_metrics.h"

namespace cadre {

struct SimulationOptions {
  int64_t num_experts = 896;
  int64_t num_layers = 16;
  int64_t num_ranks = 64;
  int64_t spare_slots_per_rank = 1;
  double sigma = 1.0;  // of the lognormal loads
  // The load a placement meets is the one it was fitted to times a lognormal
  // factor of this sigma.
  double drift = 0.1;
  uint64_t seed = 1;
};

// Balancedness (mean / max rank load over all layers).
struct SimulationResult {
  LoadMetrics load;  // of the router, before any placement
  double contiguous = 0.0;
  double greedy = 0.0;  // placement alone, no copies
  double eplb = 0.0;
  // The last and the first on the drifted load.
  double contiguous_drifted = 0.0;
  double eplb_drifted = 0.0;
};

// INVALID_ARGUMENT when the experts do not divide over the ranks.
absl::StatusOr<SimulationResult> SimulatePlacement(
    const SimulationOptions& options);

// Lognormal loads [layers][experts], median 1.
ExpertLoads LognormalLoads(int64_t num_layers, int64_t num_experts,
                           double sigma, uint64_t seed);

}  // namespace cadre

#endif  // CADRE_PLAN_PLACEMENT_SIMULATION_H_
