#include "tests/cluster/skewed_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/model_spec.h"
#include "worker/model/model.h"
#include "worker/model/tiny_models.h"
#include "worker/train/scratch_export.h"
#include "worker/train/tiny_config.h"

namespace cadre::testing {
namespace {

constexpr int kRounds = 150, kLines = 24;
constexpr double kRate = 0.04;       // of a bias, per unit of log load
constexpr double kGoodEnough = 0.3;  // error of log loads, of their deviation
constexpr double kLeastLoad = 0.5;   // for the logarithm of an unused expert

// As the tokenizer of Cluster::MakeJob reads it.
Batch Tokens(const std::vector<std::string>& lines) {
  Batch batch{.cu_seqlens = {0}};
  for (const std::string& line : lines) {
    for (const char c : line) {
      batch.ids.push_back(c == ' ' ? '~' - '!' + 1 : c - '!');
      batch.targets.push_back(Batch::kIgnore);
    }
    batch.targets.back() = 0;
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  return batch;
}

// Shares of the load.
std::vector<double> Draw(const SkewedModel& options, std::mt19937_64* random) {
  std::normal_distribution<double> normal(0, options.sigma);
  std::vector<double> shares(options.num_experts);
  double sum = 0;
  for (double& share : shares) sum += share = std::exp(normal(*random));
  for (double& share : shares) share /= sum;
  return shares;
}

absl::Status Fit(const SkewedModel& options, Model* model) {
  std::mt19937_64 random(options.seed);
  std::vector<Tensor> biases;
  std::vector<std::vector<double>> wanted;
  for (Parameter* p : model->parameters().all()) {
    if (!absl::EndsWith(p->name, "e_score_correction_bias")) continue;
    for (float& value : p->value.span<float>()) value = 0;
    biases.push_back(p->value);
    wanted.push_back(Draw(options, &random));
  }
  const Batch batch = Tokens(SkewedText(kLines));
  double error = 0;
  for (int round = 0; round < kRounds; ++round) {
    CADRE_ASSIGN_OR_RETURN(const ForwardResult result,
                           model->Forward(batch, {}));
    if (result.expert_tokens.size() != biases.size()) {
      return absl::InternalError("a router has no correction bias");
    }
    error = 0;
    for (size_t layer = 0; layer < biases.size(); ++layer) {
      double total = 0, squares = 0;
      for (const int64_t n : result.expert_tokens[layer]) {
        total += static_cast<double>(n);
      }
      for (int e = 0; e < options.num_experts; ++e) {
        const double load = std::max(
            kLeastLoad, static_cast<double>(result.expert_tokens[layer][e]));
        const double off = std::log(wanted[layer][e] * total / load);
        squares += off * off;
        biases[layer].data<float>()[e] += static_cast<float>(
            kRate * std::clamp(off, -2.0, 2.0) / (1.0 + round / 50.0));
      }
      error = std::max(error, std::sqrt(squares / options.num_experts));
    }
    if (error < kGoodEnough * options.sigma) return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(
      "the loads of the skewed model are off by ", error, " in the logarithm"));
}

}  // namespace

std::vector<std::string> SkewedText(int lines) {
  std::vector<std::string> out;
  std::mt19937 random(7);
  for (int i = 0; i < lines; ++i) {
    std::string line;
    while (line.size() < 72) {
      for (uint32_t n = 2 + random() % 6; n > 0; --n) {
        line.push_back(static_cast<char>('a' + random() % 26));
      }
      line.push_back(' ');
    }
    line.pop_back();
    out.push_back(std::move(line));
  }
  return out;
}

absl::Status WriteSkewedModel(const SkewedModel& options,
                              const std::string& tokenizer_dir,
                              const std::string& dir) {
  const std::string config = TinyConfig({.hidden = 32,
                                         .vocab = 160,
                                         .layers = 3,
                                         .dense_width = 48,
                                         .expert_width = 24,
                                         .num_experts = options.num_experts,
                                         .top_k = 4,
                                         .routed_scaling = 1.0,
                                         .max_length = 4096});
  CADRE_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(config));
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                         Model::Create(spec, {}));
  Randomize(model.get(), options.seed);
  CADRE_RETURN_IF_ERROR(Fit(options, model.get()));
  const TensorSource source = [&](const LogicalTensor& tensor, int64_t begin,
                                  int64_t end,
                                  absl::Span<float> out) -> absl::Status {
    const Parameter* const p = model->parameters().Find(tensor.name);
    if (p == nullptr) return absl::InternalError("no tensor " + tensor.name);
    const Tensor rows = p->value.Rows(begin, end);
    if (rows.num_bytes() != static_cast<int64_t>(out.size() * sizeof(float))) {
      return absl::InternalError("sizes of " + tensor.name);
    }
    std::memcpy(out.data(), rows.raw(), rows.num_bytes());
    return absl::OkStatus();
  };
  return WriteScratchCheckpoint(spec, config, tokenizer_dir, source, dir);
}

}  // namespace cadre::testing
