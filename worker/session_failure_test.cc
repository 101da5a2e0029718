// What ends a session before its time, and whom it is charged to.
#include <gmock/gmock.h>

#include <fstream>
#include <new>
#include <string>

#include "kernels/common/device_error.h"
#include "worker/session_fixture.h"

namespace cadre {
namespace session_test {
namespace {

using ::testing::HasSubstr;

std::string DeviceErrors(const std::string& kind) {
  return "cadre_device_errors_total{kind=\"" + kind + "\"} ";
}

TEST_F(SessionTest, AnErrorOfPreparingIsTheUsers) {
  script_.create = absl::NotFoundError("/m/config.json: no such file");
  const EndedState ended = Run();
  EXPECT_EQ(ended.result(), EndedState::RESULT_ERROR);
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_USER);
  EXPECT_THAT(ended.status().message(), HasSubstr("/m/config.json"));
}

TEST_F(SessionTest, AChangedDataSetIsTheUsersAndTrainsNothing) {
  std::ofstream(dir_ / "train.jsonl") << "{}";
  assignment_.mutable_spec()->mutable_data()->add_train(
      (dir_ / "train.jsonl").string());
  auto* pinned = assignment_.add_data_files();
  pinned->set_path((dir_ / "train.jsonl").string());
  pinned->set_bytes(3);
  script_.create = absl::InternalError("created");
  const EndedState ended = Run();
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_USER);
  EXPECT_THAT(ended.status().message(), HasSubstr("has 2 bytes, it had 3"));
}

TEST_F(SessionTest, AnErrorOfTrainingAbortsThePeers) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    return absl::OutOfRangeError("10 non-finite steps in a row");
  };
  const EndedState ended = Run();
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_NUMERIC);
  EXPECT_FALSE(ended.secondary());
  EXPECT_TRUE(script_.aborted.HasBeenNotified());
}

TEST_F(SessionTest, RunningOutOfMemoryIsToldAsSuch) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    throw std::bad_alloc();
  };
  EXPECT_EQ(Run().cause(), cadre::v1::FAILURE_CAUSE_OUT_OF_MEMORY);
  EXPECT_THAT(registry_.Text(), HasSubstr(DeviceErrors("out_of_memory") + "1"));
}

TEST_F(SessionTest, ErrorsOfTheDeviceAreCountedByKind) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    return WithDeviceError(absl::InternalError("cudaMemcpyAsync"),
                           DeviceErrorKind::kHardware);
  };
  const EndedState ended = Run();
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_EQ(ended.status().details_size(), 0) << "the wire knows no kinds";
  EXPECT_THAT(registry_.Text(), HasSubstr(DeviceErrors("hardware") + "1"));
  EXPECT_THAT(registry_.Text(), HasSubstr(DeviceErrors("launch") + "0"));
}

TEST_F(SessionTest, ABrokenDeviceTellsTheKindThatTheOpDidNot) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.device = WithDeviceError(absl::InternalError("cudaMemGetInfo"),
                                   DeviceErrorKind::kLaunch);
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    return absl::InternalError("grouped_gemm: an illegal address");
  };
  const EndedState ended = Run();
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_THAT(ended.evidence(), HasSubstr("grouped_gemm: an illegal address"));
  EXPECT_THAT(ended.evidence(), HasSubstr("cudaMemGetInfo"));
  EXPECT_THAT(registry_.Text(), HasSubstr(DeviceErrors("launch") + "1"));
}

TEST_F(SessionTest, ACollectiveThatItsOwnDeviceBrokeIsNotAPeersFailure) {
  link_.SetTarget(DesiredRun::TARGET_TRAIN);
  script_.device = WithDeviceError(absl::UnavailableError("cudaMemGetInfo"),
                                   DeviceErrorKind::kHardware);
  script_.train = [](TrainObserver*) -> absl::StatusOr<TrainOutcome> {
    return absl::UnavailableError("all-to-all: unhandled cuda error");
  };
  const EndedState ended = Run();
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_FALSE(ended.secondary());
  EXPECT_THAT(registry_.Text(), HasSubstr(DeviceErrors("hardware") + "1"));
}

}  // namespace
}  // namespace session_test
}  // namespace cadre
