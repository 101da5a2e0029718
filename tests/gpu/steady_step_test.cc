// What a step may ask of the GPU once the first ones have run: nothing is
// allocated or made, and the host waits only where docs/gpu.md says so.

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/mesh_fixture.h"
#include "tests/gpu/runtime_calls.h"

namespace cadre {
namespace {

using testing::CountedCalls;
using testing::RuntimeCalls;

constexpr int64_t kWarmUp = 4, kSteady = 5;
constexpr int64_t kMoeLayers = 2;  // of MeshConfig

class SteadyStepTest : public MeshCudaFixture,
                       public ::testing::WithParamInterface<DType> {
 protected:
  SteadyStepTest() : MeshCudaFixture(GetParam()) {}

  // Rows of one length: arenas and tables grow with the longest.
  std::unique_ptr<PackedDataset> TrainData(const TrainerOptions& o) override {
    std::vector<EncodedSample> samples(40);
    uint32_t random = 7;
    for (EncodedSample& sample : samples) {
      sample.full_length = o.data.max_seq_len;
      for (int64_t t = 0; t < o.data.max_seq_len; ++t) {
        random = random * 1664525u + 1013904223u;
        sample.ids.push_back(1 + static_cast<int32_t>(random >> 8) % 47);
        sample.trained.push_back(t > 0);
      }
    }
    return Data(o, std::move(samples));
  }

  // Of a run of `steps` steps, from the making of the model to its end.
  RuntimeCalls CallsOf(TrainerOptions options, int64_t steps) {
    options.training.max_steps = steps;
    const RuntimeCalls before = CountedCalls();
    for (const auto& run : RunOnGpus(options)) EXPECT_OK(run->status);
    return CountedCalls() - before;
  }
};

TEST_P(SteadyStepTest, AllocatesNothingAndWaitsOnlyWhereItIsStated) {
  for (const auto method : {kLora, kFull}) {
    for (const Layout& layout :
         {Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{2, 2, 1}, Layout{2, 1, 2},
          Layout{2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts, ", ",
                                method == kFull ? "full" : "lora"));
      const TrainerOptions options = OptionsOf(layout, method);
      // Set-up, export and the first steps are in both.
      const RuntimeCalls some = CallsOf(options, kWarmUp);
      const RuntimeCalls more = CallsOf(options, kWarmUp + kSteady);
      const RuntimeCalls steady = more - some;
      // The end of each pass, the numbers of rows that each layer with experts
      // sends to other ranks, and the norm of the gradient.
      const int64_t passes = options.training.global_batch_size;
      const int64_t counts = layout.experts > 1 ? passes * kMoeLayers : 0;
      const std::string found =
          absl::StrCat(steady.ToString(), " in ", kSteady, " steps");
      EXPECT_EQ(steady.waits, kSteady * (passes + counts + layout.ranks))
          << found;
      EXPECT_EQ(steady.blocking_copies, kSteady * (counts + layout.ranks))
          << found;
      EXPECT_EQ(steady.frees, 0) << found;
      EXPECT_EQ(steady.handles, 0) << found;
      // The workspace of products is a stream's and never freed: a run whose
      // stream has the handle of an earlier one finds it. With several ranks it
      // is chance which run does, so that the runs may differ by one
      // allocation a rank; in every step they would differ by kSteady.
      static_assert(kSteady > 2);
      EXPECT_LE(std::abs(steady.allocations),
                layout.ranks == 1 ? 0 : layout.ranks)
          << found;
      RecordProperty(absl::StrCat("calls_", method == kFull ? "full_" : "lora_",
                                  layout.ranks, layout.shards, layout.experts),
                     steady.ToString());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SteadyStepTest,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return info.param == DType::kF32 ? "f32" : "bf16";
                         });

}  // namespace
}  // namespace cadre
