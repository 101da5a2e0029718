#ifndef CADRE_COORDINATOR_UNEVEN_LOADS_H_
#define CADRE_COORDINATOR_UNEVEN_LOADS_H_

// For tests: loads of experts that are worth moving. Stateless.

#include <cstdint>

#include "cadre/v1/worker_service.pb.h"

namespace cadre::coordinator {

// Of the steps [first, last]: 8 experts on 2 ranks with a spare slot each; the
// first experts are hot.
inline v1::ExpertLoads UnevenLoads(int64_t first, int64_t last) {
  v1::ExpertLoads loads;
  loads.set_first_step(first);
  loads.set_last_step(last);
  loads.set_steps_left(1000);
  loads.set_slots_per_rank(5);
  loads.set_expert_seconds(1.0);
  loads.set_expert_bytes(1 << 20);
  loads.set_expert_state_bytes(1 << 20);
  auto* layer = loads.add_layers();
  for (const int64_t tokens : {80, 40, 20, 10, 5, 3, 2, 1}) {
    layer->add_tokens(tokens * (last - first + 1));
  }
  for (const int64_t tokens : {150, 11}) {
    layer->add_rank_tokens(tokens * (last - first + 1));
  }
  return loads;
}

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_UNEVEN_LOADS_H_
