#include "worker/supervisor.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

TEST(SupervisorTest, ChildrenGetTheirOwnIndexIdAndAddresses) {
  const WorkerOptions options{.worker_id = "node-7.0",
                              .metrics_listen = "0.0.0.0:8480",
                              .health_listen = "[::1]:8490",
                              .ports_file = "ports",
                              .devices = 8};
  EXPECT_THAT(
      ChildArguments({"--per-device", "--config=w.textproto", "--devices", "8",
                      "--health-listen=[::1]:8490", "--device=cuda"},
                     options, 3),
      ElementsAre("--config=w.textproto", "--device=cuda", "--index=3",
                  "--worker-id=node-7.3", "--metrics-listen=0.0.0.0:8483",
                  "--health-listen=[::1]:8493", "--ports-file=ports.3"));
}

TEST(SupervisorTest, AddressesWithoutAPortStayAsTheyAre) {
  const WorkerOptions options{.worker_id = "special",
                              .metrics_listen = "127.0.0.1:0",
                              .health_listen = "off"};
  EXPECT_THAT(
      ChildArguments({}, options, 1),
      ElementsAre("--index=1", "--worker-id=special.1",
                  "--metrics-listen=127.0.0.1:0", "--health-listen=off"));
}

TEST(SupervisorTest, CountsTheDeviceFilesOfGpusOnly) {
  const std::string dev = absl::StrCat(::testing::TempDir(), "/gpu_files");
  std::filesystem::create_directories(dev);
  for (const char* name :
       {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(absl::StrCat(dev, "/", name)).put(' ');
  }
  EXPECT_EQ(CountGpus(dev), 3);
  EXPECT_EQ(CountGpus(absl::StrCat(dev, "/none")), 0);
}

}  // namespace
}  // namespace cadre
