#include "worker/device/gpu_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

GpuFacts H200() {
  return {.driver_version = 13010,
          .runtime_version = 13000,
          .num_devices = 2,
          .index = 1,
          .name = "NVIDIA H200",
          .capability_major = 9};
}

std::string ErrorOf(const GpuFacts& facts) {
  const absl::Status status = CheckGpu(facts);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

TEST(GpuFactsTest, TheChipOfTheKernelsIsTaken) {
  EXPECT_OK(CheckGpu(H200()));
  GpuFacts newer = H200();
  newer.driver_version = 14000;
  EXPECT_OK(CheckGpu(newer));
  // The runtime's minor version may be ahead of the driver's.
  newer.driver_version = 13000;
  newer.runtime_version = 13020;
  EXPECT_OK(CheckGpu(newer));
}

TEST(GpuFactsTest, SaysWhatToDoWithoutADriver) {
  GpuFacts facts = H200();
  facts.driver_version = 0;
  facts.num_devices = 0;
  EXPECT_THAT(ErrorOf(facts),
              AllOf(HasSubstr("no NVIDIA driver is loaded"),
                    HasSubstr("CUDA 13.0"), HasSubstr("nvidia-smi must run")));
  facts.driver_version = 12040;
  EXPECT_THAT(ErrorOf(facts), AllOf(HasSubstr("knows CUDA 12.4"),
                                    HasSubstr("needs 13.0: install a newer")));
}

TEST(GpuFactsTest, NamesTheGpuThatIsNotThere) {
  GpuFacts facts = H200();
  facts.index = 2;
  EXPECT_THAT(ErrorOf(facts), HasSubstr("GPU 2: this machine has 2 GPUs"));
  facts.num_devices = 0;
  EXPECT_THAT(ErrorOf(facts), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(GpuFactsTest, NamesTheChipThatTheKernelsAreNotMadeFor) {
  GpuFacts facts = H200();
  facts.name = "NVIDIA A100";
  facts.capability_major = 8;
  EXPECT_THAT(
      ErrorOf(facts),
      AllOf(HasSubstr("NVIDIA A100 of compute capability 8.0"),
            HasSubstr("code for 9.0 (H100, H200)"), HasSubstr("--index")));
  facts.capability_major = 10;
  EXPECT_THAT(ErrorOf(facts), HasSubstr("10.0"));
}

}  // namespace
}  // namespace cadre
