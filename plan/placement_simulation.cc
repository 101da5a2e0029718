#include "plan/placement_simulation.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed) {}

  double Next() {
    // Box-Muller; the second value of a pair is not used.
    const double radius = std::sqrt(-2.0 * std::log(Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

 private:
  // (0, 1], SplitMix64.
  double Uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (static_cast<double>(z >> 11) + 1.0) * 0x1.0p-53;
  }
  uint64_t state_;
};

}  // namespace

ExpertLoads LognormalLoads(int64_t num_layers, int64_t num_experts,
                           double sigma, uint64_t seed) {
  Normal normal(seed);
  ExpertLoads loads(num_layers, std::vector<double>(num_experts));
  for (std::vector<double>& layer : loads) {
    for (double& load : layer) load = std::exp(sigma * normal.Next());
  }
  return loads;
}

absl::StatusOr<SimulationResult> SimulatePlacement(
    const SimulationOptions& options) {
  if (options.num_ranks < 1 || options.num_experts < 1 ||
      options.num_layers < 1 || options.spare_slots_per_rank < 0 ||
      options.num_experts % options.num_ranks != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot simulate ", options.num_layers, " layers of ",
                     options.num_experts, " experts over ", options.num_ranks,
                     " ranks with ", options.spare_slots_per_rank,
                     " spare slots: experts must divide over the ranks"));
  }
  const ExpertLoads loads = LognormalLoads(
      options.num_layers, options.num_experts, options.sigma, options.seed);
  ExpertLoads drifted =
      LognormalLoads(options.num_layers, options.num_experts, options.drift,
                     options.seed ^ 0x5851f42d4c957f2du);
  for (size_t l = 0; l < loads.size(); ++l) {
    for (size_t e = 0; e < loads[l].size(); ++e) drifted[l][e] *= loads[l][e];
  }
  PlacementShape shape = {
      .num_layers = options.num_layers,
      .num_experts = options.num_experts,
      .num_ranks = options.num_ranks,
      .slots_per_rank = options.num_experts / options.num_ranks};
  SimulationResult out;
  out.load = EvaluateLoads(loads);
  CADRE_ASSIGN_OR_RETURN(const ExpertPlacement contiguous,
                         PlaceContiguous(shape));
  CADRE_ASSIGN_OR_RETURN(const ExpertPlacement greedy,
                         Place(loads, {.shape = shape, .replicate = false}));
  shape.slots_per_rank += options.spare_slots_per_rank;
  CADRE_ASSIGN_OR_RETURN(const ExpertPlacement eplb,
                         Place(loads, {.shape = shape}));
  out.contiguous = Balancedness(contiguous, loads);
  out.greedy = Balancedness(greedy, loads);
  out.eplb = Balancedness(eplb, loads);
  out.contiguous_drifted = Balancedness(contiguous, drifted);
  out.eplb_drifted = Balancedness(eplb, drifted);
  return out;
}

}  // namespace cadre
