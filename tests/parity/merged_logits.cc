// merged_logits --golden DIR --adapter DIR --merged DIR: the logits of a merged
// checkpoint are those of base and adapter. Exit code 0 or 1.
//
// merged_logits --golden DIR --adapter DIR --per-expert DIR: writes the adapter
// in the layout with one pair of matrices per expert.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/common/exec.h"
#include "kernels/common/thread_pool.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "tests/parity/golden.h"
#include "worker/model/model.h"

namespace cadre::parity {
namespace {

// As for logits against the reference (models.md section 7).
constexpr double kTolerance = 1e-5;

struct Args {
  std::string golden, adapter, merged, per_expert;
};

absl::StatusOr<std::vector<float>> Logits(const ModelDir& dir,
                                          const PeftAdapter* adapter,
                                          const Batch& batch) {
  ThreadPool pool(1);
  ModelOptions options{.exec = {.pool = &pool}};
  if (adapter != nullptr) options.lora = adapter->plan;
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                         Model::Create(dir.spec(), options));
  CADRE_RETURN_IF_ERROR(model->LoadWeights(dir));
  for (size_t i = 0; adapter != nullptr && i < adapter->weights.size(); ++i) {
    const LoraModule& module = adapter->plan.modules[i];
    const AdapterWeights& weights = adapter->weights[i];
    ParameterRegistry& parameters = model->parameters();
    std::copy(weights.a.begin(), weights.a.end(),
              parameters.Find(module.a_name())->value.data<float>());
    std::copy(weights.b.begin(), weights.b.end(),
              parameters.Find(module.b_name())->value.data<float>());
  }
  std::vector<float> logits;
  CADRE_RETURN_IF_ERROR(model->Forward(batch, {.logits = &logits}).status());
  return logits;
}

double LargestDifference(const std::vector<float>& a,
                         const std::vector<float>& b) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::fabs(double{a[i]} - b[i]));
    largest = std::max(largest, std::fabs(double{b[i]}));
  }
  return difference / largest;
}

absl::Status CompareLogits(const Args& args) {
  CADRE_ASSIGN_OR_RETURN(const ModelDir base,
                         ModelDir::Open(args.golden + "/model"));
  CADRE_ASSIGN_OR_RETURN(const PeftAdapter adapter,
                         ReadPeftAdapter(args.adapter, base.spec()));
  if (!args.per_expert.empty()) {
    CADRE_ASSIGN_OR_RETURN(
        const PeftAdapter converted,
        ConvertExpertLayout(adapter, ExpertLayout::kPerExpert));
    return WritePeftAdapter(converted, base.spec(), args.per_expert);
  }
  CADRE_ASSIGN_OR_RETURN(const Golden golden, ReadGolden(args.golden));
  CADRE_ASSIGN_OR_RETURN(const ModelDir merged, ModelDir::Open(args.merged));
  CADRE_ASSIGN_OR_RETURN(const std::vector<float> plain,
                         Logits(base, nullptr, golden.batch));
  CADRE_ASSIGN_OR_RETURN(const std::vector<float> expected,
                         Logits(base, &adapter, golden.batch));
  CADRE_ASSIGN_OR_RETURN(const std::vector<float> found,
                         Logits(merged, nullptr, golden.batch));
  const double difference = LargestDifference(found, expected);
  const double effect = LargestDifference(plain, expected);
  absl::PrintF("%s: merged logits differ by %.2e, without adapter by %.2e\n",
               args.adapter, difference, effect);
  if (difference <= kTolerance && effect > 100 * kTolerance) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      "merged logits differ, or the adapter has no "
      "effect");
}

}  // namespace
}  // namespace cadre::parity

int main(int argc, char** argv) {
  cadre::parity::Args args;
  CLI::App app("Compares a merged checkpoint with base and adapter.");
  app.add_option("--golden", args.golden)->required();
  app.add_option("--adapter", args.adapter)->required();
  app.add_option("--merged", args.merged);
  app.add_option("--per-expert", args.per_expert);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = cadre::parity::CompareLogits(args);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}
