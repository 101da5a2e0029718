#ifndef CADRE_TESTS_PARITY_GOLDEN_H_
#define CADRE_TESTS_PARITY_GOLDEN_H_

// One architecture folder of the golden fixtures (models.md section 7).

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/batch.h"

namespace cadre::parity {

struct NamedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using NamedTensors = std::map<std::string, NamedTensor>;

// One entry per step: loss and global gradient norm before clipping.
using Trajectory = std::vector<std::pair<double, double>>;

struct Golden {
  std::string dir;
  Batch batch;
  int64_t sequence_length = 0;
  NamedTensors forward;  // without input_ids and labels
  NamedTensors grads;    // empty: the fixture holds none
  Trajectory full;
  std::map<std::string, Trajectory> lora;  // by run: "attn", ...
  double lr_full = 0, lr_lora = 0, weight_decay_full = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0, max_grad_norm = 0;
  std::vector<std::string> lora_runs;  // runs with a folder lora_RUN_init
};

absl::StatusOr<Golden> ReadGolden(const std::string& dir);

// All floating tensors of a safetensors file, as float32.
absl::StatusOr<NamedTensors> ReadTensors(const std::string& path);

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_GOLDEN_H_
