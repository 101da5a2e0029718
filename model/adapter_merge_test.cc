// W + scale B A against plain loops over the adapter's file layout.

#include "model/adapter_merge.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::GoldenPath;
using ::cadre::testing::NewFolder;
using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

// A new adapter with distinct values everywhere.
PeftAdapter NewAdapter(const ModelSpec& spec, const LoraOptions& options) {
  PeftAdapter adapter;
  adapter.plan = PlanLora(spec, options).value();
  float value = 0.0f;
  const auto next = [&value] {
    value += 0.37f;
    return std::sin(value);
  };
  for (const LoraModule& module : adapter.plan.modules) {
    const int64_t count = std::max<int64_t>(module.num_experts, 1);
    AdapterWeights weights;
    weights.a.resize(count * module.rank * module.in);
    weights.b.resize(count * module.rank * module.out);
    for (float& x : weights.a) x = next();
    for (float& x : weights.b) x = next();
    adapter.weights.push_back(std::move(weights));
  }
  return adapter;
}

std::vector<float> ReadAll(const ModelDir& dir, const std::string& name) {
  const LogicalTensor& tensor = *dir.Find(name);
  std::vector<float> values(tensor.num_elements());
  EXPECT_OK(dir.Read(name, Tensor(values.data(), DType::kF32, tensor.shape)));
  return values;
}

// The weight of one row and column after the merge.
double Expected(const PeftAdapter& adapter, const std::string& path,
                int64_t expert, int64_t row, int64_t column, double base) {
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    if (module.path != path) continue;
    double sum = 0;
    for (int64_t r = 0; r < module.rank; ++r) {
      sum +=
          double{adapter.weights[i]
                     .b[(expert * module.out + row) * module.rank + r]} *
          adapter.weights[i].a[(expert * module.rank + r) * module.in + column];
    }
    return base + module.scale * sum;
  }
  ADD_FAILURE() << "no module " << path;
  return 0;
}

TEST(AdapterMerge, AddsTheUpdateInEveryLayout) {
  const std::string base_path = GoldenPath("glm5_next", "model");
  ASSERT_OK_AND_ASSIGN(const ModelDir base, ModelDir::Open(base_path));
  const LoraOptions options = {.rank = 3,
                               .alpha = 5,
                               .rslora = true,
                               .targets = {"all-linear", "expert_gate"}};
  const PeftAdapter adapter = NewAdapter(base.spec(), options);
  const std::string layer = "model.language_model.layers.1.";
  for (const ExpertLayout layout :
       {ExpertLayout::kPerExpert, ExpertLayout::kFused}) {
    const std::string dir = NewFolder(), to = NewFolder() + "/merged";
    PeftAdapter laid_out = adapter;
    laid_out.layout = layout;
    ASSERT_OK(WritePeftAdapter(laid_out, base.spec(), dir));
    ASSERT_OK_AND_ASSIGN(PeftAdapter read, ReadPeftAdapter(dir, base.spec()));
    ASSERT_OK_AND_ASSIGN(const AdapterMerge merge,
                         AdapterMerge::Create(base, std::move(read)));
    ASSERT_OK(WriteCheckpoint(base, merge.Source(), to,
                              {.max_shard_bytes = 200'000}));
    ASSERT_OK_AND_ASSIGN(const ModelDir merged, ModelDir::Open(to));
    EXPECT_GT(merged.WeightFiles().size(), 2u);

    int64_t changed = 0;
    for (const LogicalTensor& tensor : base.tensors()) {
      changed += ReadAll(base, tensor.name) != ReadAll(merged, tensor.name);
    }
    EXPECT_EQ(changed, merge.num_adapted_tensors());

    const std::string gate_up = layer + "mlp.experts.gate_up_proj";
    const LogicalTensor& tensor = *base.Find(gate_up);
    const int64_t width = tensor.shape[1] / 2, in = tensor.shape[2];
    const std::vector<float> before = ReadAll(base, gate_up);
    const std::vector<float> after = ReadAll(merged, gate_up);
    for (int64_t e = 0; e < tensor.shape[0]; ++e) {
      for (int64_t row = 0; row < 2 * width; ++row) {
        for (int64_t column = 0; column < in; ++column) {
          const int64_t at = (e * 2 * width + row) * in + column;
          const bool up = row >= width;
          ASSERT_NEAR(after[at],
                      Expected(adapter,
                               layer + (up ? "mlp.experts.up_proj"
                                           : "mlp.experts.gate_proj"),
                               e, up ? row - width : row, column, before[at]),
                      1e-5)
              << e << " " << row << " " << column;
        }
      }
    }
    for (const char* module : {"mlp.gate", "self_attn.q_proj"}) {
      const std::string path = layer + module;
      const int64_t columns = base.Find(path + ".weight")->shape[1];
      EXPECT_NEAR(ReadAll(merged, path + ".weight")[2 * columns + 5],
                  Expected(adapter, path, 0, 2, 5,
                           ReadAll(base, path + ".weight")[2 * columns + 5]),
                  1e-5);
    }
  }
}

TEST(AdapterMerge, GateAndUpMayShareOneA) {
  ASSERT_OK_AND_ASSIGN(const ModelDir base,
                       ModelDir::Open(GoldenPath("qwen3_moe", "model")));
  const PeftAdapter adapter =
      NewAdapter(base.spec(), {.rank = 2,
                               .alpha = 4,
                               .shared_gate_up = true,
                               .targets = {"mlp.experts.gate_up_proj"}});
  ASSERT_OK_AND_ASSIGN(const AdapterMerge merge,
                       AdapterMerge::Create(base, adapter));
  const LoraModule& module = adapter.plan.modules[0];
  const LogicalTensor& tensor = *base.Find(module.path);
  std::vector<float> rows(tensor.num_elements() / tensor.shape[0]);
  ASSERT_OK(merge.Source()(tensor, 3, 4, absl::MakeSpan(rows)));
  const int64_t in = tensor.shape[2], row = module.out - 1;
  const std::vector<float> before = ReadAll(base, module.path);
  EXPECT_NEAR(rows[row * in + 1],
              Expected(adapter, module.path, 3, row, 1,
                       before[(3 * module.out + row) * in + 1]),
              1e-5);
}

TEST(AdapterMerge, RefusesAnAdapterOfAnotherModel) {
  ASSERT_OK_AND_ASSIGN(const ModelDir base,
                       ModelDir::Open(GoldenPath("qwen3_moe", "model")));
  ASSERT_OK_AND_ASSIGN(const ModelDir other,
                       ModelDir::Open(GoldenPath("qwen3_next", "model")));
  EXPECT_THAT(AdapterMerge::Create(
                  base, NewAdapter(other.spec(), {.targets = {"q_proj"}}))
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("model.layers.3.self_attn.q_proj")));
}

}  // namespace
}  // namespace cadre
