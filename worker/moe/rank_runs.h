#ifndef CADRE_WORKER_MOE_RANK_RUNS_H_
#define CADRE_WORKER_MOE_RANK_RUNS_H_

// One forward and backward pass of a tiny model on several ranks (threads of
// this process), and the same on one rank that holds everything, for tests that
// compare the two. Test-only; plain functions.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "plan/expert_placement.h"
#include "worker/model/batch.h"
#include "worker/model/model.h"

namespace cadre::testing {

struct RunOptions {
  bool lora = false;
  ModelOptions model;  // lora and expert_parallel are filled in
  uint64_t seed = 5;
  std::vector<std::string> link_domains;  // by rank
  // After the parameters were filled.
  std::function<void(Model*)> prepare;
};

struct RunResult {
  double loss = 0.0;  // per target
  double aux_loss = 0.0;
  double norm = 0.0;
  // Whole gradients by name, summed over ranks and copies.
  std::map<std::string, std::vector<double>> gradients;
  std::vector<ForwardResult> ranks;
};

// Everything on one rank; the batches one behind the other, as one.
RunResult RunAlone(const ModelSpec& spec, const RunOptions& options,
                   const std::vector<Batch>& batches);

// Rank r has batches[r] and position r % P in its group of the P ranks of the
// placement.
RunResult RunOnRanks(const ModelSpec& spec, const RunOptions& options,
                     const ExpertPlacement& placement,
                     const std::vector<Batch>& batches);

Batch Joined(const std::vector<Batch>& batches);

// The placements tests use: experts in order with as few slots as fit, or EPLB
// for uneven loads with `spare` slots a rank more.
ExpertPlacement InOrder(const ModelSpec& spec, int64_t ranks);
ExpertPlacement WithSpares(const ModelSpec& spec, int64_t ranks, int64_t spare);

// Largest |a - b| / |b| over the gradients, in the Euclidean norm; b below
// 1e-4 of the whole norm counts as that. Names that are not in both count 1.
double GradientDistance(const RunResult& a, const RunResult& b);

}  // namespace cadre::testing

#endif  // CADRE_WORKER_MOE_RANK_RUNS_H_
