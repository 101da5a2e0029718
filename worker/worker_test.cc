// The parts of the worker that need neither a server nor a model.
#include <string>
#include <thread>

#include "base/status_matchers.h"
#include "kernels/common/device_error.h"
#include "worker/comm/peer_failure.h"
#include "worker/failure.h"
#include "worker/rendezvous_client.h"
#include "worker/report_buffer.h"
#include "worker/session_link.h"

namespace cadre {
namespace {

using cadre::testing::StatusIs;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using cadre::v1::Report;
using cadre::v1::SyncRequest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Hours(1);

Report Scalars(int64_t step) {
  Report report;
  report.mutable_scalars()->set_step(step);
  return report;
}

Report Saved(int64_t step) {
  Report report;
  report.mutable_files_saved()->set_step(step);
  return report;
}

// ---- ReportBuffer ----------------------------------------------------------

TEST(ReportBufferTest, NumbersReportsAndForgetsAcceptedOnes) {
  ReportBuffer buffer;
  for (int i = 1; i <= 3; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  ASSERT_EQ(request.reports_size(), 3);
  EXPECT_EQ(request.reports(2).report_seq(), 3);
  buffer.Accept(2);
  buffer.Accept(1);  // late and repeated answers are harmless
  SyncRequest second;
  buffer.AppendTo(&second);
  ASSERT_EQ(second.reports_size(), 1);
  EXPECT_EQ(second.reports(0).report_seq(), 3);
  buffer.Accept(3);
  EXPECT_TRUE(buffer.empty());
}

TEST(ReportBufferTest, OneSyncCarriesABoundedPart) {
  ReportBuffer buffer({.max_bytes_per_sync = 1});
  for (int i = 1; i <= 3; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  ASSERT_EQ(request.reports_size(), 1);
  EXPECT_EQ(request.reports(0).report_seq(), 1);
}

TEST(ReportBufferTest, ThinsScalarsAndKeepsSavesWhenFull) {
  ReportBuffer buffer({.max_bytes = 2000});
  for (int i = 1; i <= 20; ++i) buffer.Add(Saved(i));
  for (int i = 1; i <= 1000; ++i) buffer.Add(Scalars(i));
  SyncRequest request;
  buffer.AppendTo(&request);
  int64_t saves = 0, previous = 0, last_scalars = 0;
  for (const Report& report : request.reports()) {
    saves += report.has_files_saved();
    if (report.has_scalars()) last_scalars = report.scalars().step();
    EXPECT_GT(report.report_seq(), previous);
    previous = report.report_seq();
  }
  EXPECT_EQ(saves, 20);
  EXPECT_EQ(last_scalars, 1000);
  EXPECT_GT(buffer.num_dropped(), 500);
  EXPECT_LE(request.ByteSizeLong(), 2200u);
}

// ---- SessionLink and RendezvousClient --------------------------------------

class LinkTest : public ::testing::Test {
 protected:
  SyncRequest State() {
    SyncRequest request;
    link_.FillState(&request);
    return request;
  }
  ReportBuffer reports_;
  int changes_ = 0;
  SessionLink link_{4, &reports_, [this] { ++changes_; }};
};

TEST_F(LinkTest, ShowsEachStateAndKeepsTheLast) {
  EXPECT_TRUE(State().has_preparing());
  link_.SetPreparing("model", 3, 10);
  EXPECT_EQ(State().preparing().stage(), "model");
  link_.Publish("address", "1.2.3.4");
  EXPECT_EQ(State().preparing().published().at("address"), "1.2.3.4");
  link_.SetReady();
  EXPECT_TRUE(State().has_ready());
  link_.SetPhase("train");
  EXPECT_EQ(State().running().phase(), "train");
  EXPECT_EQ(State().running().published().at("address"), "1.2.3.4");
  link_.SetPhase("save");
  link_.SetStepsDone();
  EXPECT_EQ(State().running().phase(), "save");
  EXPECT_TRUE(State().running().steps_done());
  EndedState ended;
  ended.set_result(EndedState::RESULT_DONE);
  link_.SetEnded(ended);
  link_.SetPhase("train");
  EXPECT_EQ(State().ended().result(), EndedState::RESULT_DONE);
  EXPECT_EQ(State().attempt_epoch(), 4);
}

TEST_F(LinkTest, ReportsStoppingUntilEnded) {
  link_.SetPhase("train");
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
  EXPECT_EQ(State().stopping().mode(), cadre::v1::STOP_MODE_CHECKPOINT);
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "late");
  EXPECT_EQ(State().stopping().mode(), cadre::v1::STOP_MODE_NOW);
  EXPECT_EQ(link_.stop_reason(), "cancel");
  link_.SetEnded({});
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, AGoodEndIsToldOnlyWhenAllReportsAreAccepted) {
  link_.SetPhase("export");
  link_.Attach({.abort = [] {},
                .step = [] { return int64_t{4}; },
                .collective_seq = [] { return int64_t{9}; }});
  link_.Detach();
  link_.AddReport(Saved(5));
  EndedState ended;
  ended.set_result(EndedState::RESULT_DONE);
  ended.set_step(5);
  link_.SetEnded(ended);
  EXPECT_EQ(State().running().phase(), "export");
  EXPECT_EQ(State().running().step(), 5);
  EXPECT_EQ(State().running().collective_seq(), 9);
  reports_.Accept(1);
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, ABadEndIsToldAtOnce) {
  link_.AddReport(Saved(5));
  EndedState ended;
  ended.set_result(EndedState::RESULT_ERROR);
  link_.SetEnded(ended);
  EXPECT_TRUE(State().has_ended());
}

TEST_F(LinkTest, WaitPrefersStopThenSealThenTarget) {
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, absl::ZeroDuration()),
            SessionLink::Wake::kDeadline);
  link_.SetTarget(DesiredRun::TARGET_EXPORT);
  link_.SetTarget(DesiredRun::TARGET_PREPARE);  // never back
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, kLong),
            SessionLink::Wake::kTarget);
  link_.RequestStop(cadre::v1::STOP_MODE_CHECKPOINT, "pause");
  EXPECT_EQ(link_.Wait(DesiredRun::TARGET_TRAIN, kLong),
            SessionLink::Wake::kStopCheckpoint);
  EXPECT_EQ(link_.Wait(std::nullopt, absl::ZeroDuration()),
            SessionLink::Wake::kDeadline);
  link_.RequestSeal({.step = 10});
  EXPECT_EQ(link_.Wait(std::nullopt, kLong), SessionLink::Wake::kSeal);
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  EXPECT_EQ(link_.Wait(std::nullopt, kLong), SessionLink::Wake::kStopNow);
}

TEST_F(LinkTest, ASealIsHandedOutOnceThoughItIsRepeated) {
  link_.RequestSeal({.step = 10});
  ASSERT_TRUE(link_.TakeSeal().has_value());
  link_.RequestSeal({.step = 10});
  EXPECT_FALSE(link_.TakeSeal().has_value());
  link_.RequestSeal({.step = 20});
  EXPECT_EQ(link_.TakeSeal()->step, 20);
}

TEST_F(LinkTest, RemovalsAreHandedOutOnceEach) {
  link_.RequestRemovals({"a", "b"});
  link_.RequestRemovals({"b"});
  EXPECT_THAT(link_.TakeRemovals(), ElementsAre("a", "b"));
  EXPECT_TRUE(link_.TakeRemovals().empty());
}

TEST_F(LinkTest, TheAbortHookRunsAlsoWhenTheOrderCameFirst) {
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  int aborts = 0;
  link_.Attach({.abort = [&] { ++aborts; }});
  link_.Detach();  // waits for it
  EXPECT_EQ(aborts, 1);
}

TEST_F(LinkTest, NoHookRunsAfterDetach) {
  int aborts = 0;
  link_.Attach({.abort = [&] { ++aborts; }});
  link_.Detach();
  link_.RequestStop(cadre::v1::STOP_MODE_NOW, "cancel");
  EXPECT_EQ(aborts, 0);
}

TEST_F(LinkTest, RendezvousGivesWhatThePeersPublished) {
  RendezvousClient store(&link_);
  ASSERT_OK(store.Set("rank0", "here"));
  EXPECT_EQ(State().preparing().published().at("rank0"), "here");
  EXPECT_GT(changes_, 0);
  std::thread agent([&] {
    cadre::v1::Rendezvous rendezvous;
    (*rendezvous.mutable_values())["rank1"] = "there";
    link_.SetRendezvous(rendezvous);
  });
  ASSERT_OK_AND_ASSIGN(const std::string value, store.Get("rank1", kLong));
  EXPECT_EQ(value, "there");
  agent.join();
}

TEST_F(LinkTest, RendezvousNamesTheMissingKey) {
  RendezvousClient store(&link_);
  EXPECT_THAT(
      store.Get("rank1", absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'rank1'")));
}

TEST_F(LinkTest, RendezvousEndsWhenToldToStop) {
  RendezvousClient store(&link_);
  std::thread agent(
      [&] { link_.RequestStop(cadre::v1::STOP_MODE_NOW, "rank 1 is lost"); });
  EXPECT_THAT(store.Get("rank1", kLong), StatusIs(absl::StatusCode::kAborted,
                                                  HasSubstr("rank 1 is lost")));
  agent.join();
}

TEST_F(LinkTest, RendezvousPublishesABoundedNumberOfBytes) {
  RendezvousClient store(&link_);
  ASSERT_OK(store.Set("a", std::string(60 << 10, 'x')));
  EXPECT_THAT(store.Set("b", std::string(8 << 10, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// ---- EndedByError ----------------------------------------------------------

TEST(FailureTest, TheCauseFollowsTheCodeAndWhatWasDone) {
  const auto cause = [](const absl::Status& status, Activity activity) {
    return EndedByError(status, activity).cause();
  };
  EXPECT_EQ(cause(absl::NotFoundError("x"), Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_USER);
  EXPECT_EQ(cause(absl::NotFoundError("x"), Activity::kSave),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::ResourceExhaustedError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_OUT_OF_MEMORY);
  EXPECT_EQ(cause(absl::ResourceExhaustedError("x"), Activity::kSave),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::OutOfRangeError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_NUMERIC);
  EXPECT_EQ(cause(absl::DataLossError("x"), Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_STORAGE);
  EXPECT_EQ(cause(absl::InternalError("x"), Activity::kTrain),
            cadre::v1::FAILURE_CAUSE_INTERNAL);
  const auto device = [&](DeviceErrorKind kind) {
    return cause(WithDeviceError(absl::UnavailableError("x"), kind),
                 Activity::kSave);
  };
  EXPECT_EQ(device(DeviceErrorKind::kLaunch),
            cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_EQ(device(DeviceErrorKind::kHardware),
            cadre::v1::FAILURE_CAUSE_DEVICE_ERROR);
  EXPECT_EQ(cause(WithDeviceError(absl::FailedPreconditionError("x"),
                                  DeviceErrorKind::kDriver),
                  Activity::kPrepare),
            cadre::v1::FAILURE_CAUSE_USER);
}

TEST(FailureTest, APeersFailureIsSecondary) {
  const EndedState ended = EndedByError(
      absl::UnavailableError("rank 2 closed the connection"), Activity::kTrain);
  EXPECT_EQ(ended.cause(), cadre::v1::FAILURE_CAUSE_COMMUNICATION);
  EXPECT_TRUE(ended.secondary());
  EXPECT_THAT(ended.evidence(), HasSubstr("while training"));
  EXPECT_THAT(ended.evidence(), HasSubstr("rank 2 closed the connection"));
  EXPECT_FALSE(
      EndedByError(absl::InternalError("x"), Activity::kTrain).secondary());
}

TEST(DeviceErrorTest, TheKindTravelsWithTheStatusButNotOnTheWire) {
  const absl::Status status =
      Annotate(WithDeviceError(absl::InternalError("cudaStreamSynchronize"),
                               DeviceErrorKind::kLaunch),
               "layer 3");
  EXPECT_EQ(DeviceErrorOf(status), DeviceErrorKind::kLaunch);
  EXPECT_EQ(WithoutDeviceError(status),
            absl::InternalError("layer 3: cudaStreamSynchronize"));
  EXPECT_EQ(DeviceErrorOf(absl::InternalError("x")), std::nullopt);
}

TEST(FailureTest, AFailedPeerIsNamedByItsWorker) {
  cadre::v1::Assignment assignment;
  assignment.add_workers("a.0");
  assignment.add_workers("b.0");
  const absl::Status named = NamePeer(
      Annotate(
          WithFailedPeer(absl::DeadlineExceededError("rank 1 was silent"), 1),
          "step 7"),
      assignment);
  EXPECT_EQ(named.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(named.message(),
            "lost rank 1 (worker b.0): step 7: rank 1 was silent");
  EXPECT_EQ(FailedPeer(named), std::nullopt) << "would go into the details";
  const absl::Status unknown = absl::UnavailableError("somebody is gone");
  EXPECT_EQ(NamePeer(unknown, assignment), unknown);
}

}  // namespace
}  // namespace cadre
