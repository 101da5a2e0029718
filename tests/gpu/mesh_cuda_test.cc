// Training over meshes on GPUs: what a step does must not depend on who holds
// which part of the model.

#include <cstring>
#include <string>

#include "tests/gpu/mesh_fixture.h"

namespace cadre {
namespace {

class MeshCudaTest : public MeshCudaFixture,
                     public ::testing::WithParamInterface<DType> {
 protected:
  MeshCudaTest() : MeshCudaFixture(GetParam()) {}
};

TEST_P(MeshCudaTest, EveryLayoutTrainsTheSame) {
  for (const auto method : {kLora, kFull}) {
    TrainerOptions options = OptionsOf({}, method);
    options.output.dir = root_ + "/one";
    const auto one = RunOnGpus(options);
    ASSERT_OK(one[0]->status);
    for (const Layout& layout :
         {Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{2, 2, 1}, Layout{2, 1, 2},
          Layout{2, 2, 2}, Layout{4, 2, 2}, Layout{4, 2, 4}}) {
      SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                                " shards, EP ", layout.experts, ", ",
                                method == kFull ? "full" : "lora"));
      options = OptionsOf(layout, method);
      options.output.dir = root_ + "/many";
      const auto many = RunOnGpus(options);
      for (const auto& run : many) {
        ASSERT_OK(run->status);
        ExpectSameLosses(*one[0], 0, *run);
      }
      if (method == kFull) continue;
      EXPECT_LT(RelativeDistance(AdapterOf(root_ + "/one"),
                                 AdapterOf(options.output.dir)),
                GetParam() == DType::kF32 ? 1e-3 : 0.1);
    }
  }
}

TEST_P(MeshCudaTest, ACheckpointResumesOnEveryLayout) {
  TrainerOptions options = OptionsOf({}, kLora);
  options.training.max_steps = 6;
  const auto whole = RunOnGpus(options);
  ASSERT_OK(whole[0]->status);
  options = OptionsOf({2, 2, 2}, kLora);
  options.training.max_steps = 6;
  options.checkpoint.dir = root_ + "/saved";
  options.checkpoint.seal_by_trainer = true;
  const auto half = RunOnGpus(options, /*stop_at=*/3);
  for (const auto& run : half) ASSERT_OK(run->status);
  for (const Layout& layout :
       {Layout{1, 1, 1}, Layout{2, 1, 2}, Layout{2, 2, 1}, Layout{2, 2, 2}}) {
    SCOPED_TRACE(absl::StrCat(layout.ranks, " ranks, ", layout.shards,
                              " shards, EP ", layout.experts));
    TrainerOptions resumed = OptionsOf(layout, kLora);
    resumed.training.max_steps = 6;
    resumed.checkpoint.resume_path = half[0]->observer.sealed.at(3);
    const auto rest = RunOnGpus(resumed);
    for (const auto& run : rest) {
      ASSERT_OK(run->status);
      ExpectSameLosses(*whole[0], 3, *run);
    }
  }
}

// What was trained is the f32 master; the model's own copy may be bf16.
TEST_P(MeshCudaTest, TheResultIsNotRoundedToTheModelsType) {
  TrainerOptions options = OptionsOf({2, 2, 2}, kLora);
  options.output.dir = root_ + "/out";
  for (const auto& run : RunOnGpus(options)) ASSERT_OK(run->status);
  int64_t rounded = 0, all = 0;
  for (const auto& [name, values] : AdapterOf(options.output.dir)) {
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      ++all;
      rounded += (bits & 0xFFFF) == 0;
    }
  }
  EXPECT_GT(all, 0);
  EXPECT_LT(rounded, all / 2);
}

INSTANTIATE_TEST_SUITE_P(Types, MeshCudaTest,
                         ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return info.param == DType::kF32 ? "f32" : "bf16";
                         });

}  // namespace
}  // namespace cadre
