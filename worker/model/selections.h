#ifndef CADRE_WORKER_MODEL_SELECTIONS_H_
#define CADRE_WORKER_MODEL_SELECTIONS_H_

// The discrete choices of a pass: the experts of each MoE layer and the keys of
// each layer of sparse attention, in the order in which they are made. For
// comparisons: two models that round differently now and then choose another
// expert or key, and from there on compute another function. One records, the
// other is given the record; and two records say how often they differ.
// Not thread-safe; of one model at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

class Selections {
 public:
  enum class Kind { kExperts, kKeys, kNumKeys };
  struct Choice {
    Kind kind = Kind::kExperts;
    int64_t width = 1;            // per token
    std::vector<int32_t> values;  // [T, width]; -1: none
  };

  // Of the last pass, or those given.
  const std::vector<Choice>& choices() const { return choices_; }
  // Later passes take these instead of choosing.
  void Give(std::vector<Choice> choices);
  // Later passes choose, and are recorded.
  void Record() { given_ = false; }
  bool given() const { return given_; }

  // By the model: at the start of a pass, and for each choice in turn.
  void BeginPass();
  // Recording: keeps what `ids` i32 [T,...] holds. Given: fills it.
  absl::Status Exchange(const Exec& exec, Kind kind, const Tensor& ids);

 private:
  bool given_ = false;
  size_t next_ = 0;
  std::vector<Choice> choices_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_SELECTIONS_H_
