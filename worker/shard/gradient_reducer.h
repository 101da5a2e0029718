#ifndef CADRE_WORKER_SHARD_GRADIENT_REDUCER_H_
#define CADRE_WORKER_SHARD_GRADIENT_REDUCER_H_

// Sums the gradients of a registry over ranks: every parameter over the group
// of its domain (parallelism.md section 2), through one flat buffer of bounded
// size, so that many small tensors cost few collectives. Sums only; nothing is
// averaged. Not thread-safe; registry and communicators must outlive it.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/model/parameters.h"

namespace cadre {

struct GradientGroups {
  // Over which ranks a dense and an expert gradient is summed; null: over none,
  // this rank's is the sum already.
  Communicator* dense = nullptr;
  Communicator* expert = nullptr;
};

class GradientReducer {
 public:
  // The buffer holds at most `max_elements` floats.
  GradientReducer(ParameterRegistry* registry, const GradientGroups& groups,
                  int64_t max_elements = int64_t{16} << 20);

  // Every rank of the groups calls it; dense gradients first, then experts, in
  // the registry's order.
  absl::Status Reduce();

 private:
  absl::Status ReduceDomain(ParamDomain domain, Communicator* group);

  ParameterRegistry* const registry_;
  const GradientGroups groups_;
  const int64_t max_elements_;
  std::vector<float> flat_;  // kept: a step allocates nothing
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_GRADIENT_REDUCER_H_
