#ifndef CADRE_TESTS_CLUSTER_SKEWED_MODEL_H_
#define CADRE_TESTS_CLUSTER_SKEWED_MODEL_H_

// A small model whose routers load their experts unevenly, as those of real
// models do. Plain functions.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre::testing {

struct SkewedModel {
  int num_experts = 64;
  // Of the logarithm of the experts' loads, which are lognormal.
  double sigma = 1.0;
  uint64_t seed = 1;
};

// Lines of made-up words: text in which contexts differ.
std::vector<std::string> SkewedText(int lines);

// Writes a checkpoint with random weights to `dir` (which must not exist). The
// correction biases of its routers are fitted until lines of SkewedText load
// the experts as drawn. Tokenizer files come from
// `tokenizer_dir`. INTERNAL where the fit does not get there.
absl::Status WriteSkewedModel(const SkewedModel& options,
                              const std::string& tokenizer_dir,
                              const std::string& dir);

}  // namespace cadre::testing

#endif  // CADRE_TESTS_CLUSTER_SKEWED_MODEL_H_
