#ifndef CADRE_WORKER_AGENT_FIXTURE_H_
#define CADRE_WORKER_AGENT_FIXTURE_H_

// An agent that talks to a scripted coordinator over loopback. For tests.

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/metrics/registry.h"
#include "base/rpc/error.h"
#include "base/rpc/grpc_status.h"
#include "base/status_matchers.h"
#include "cadre/v1/worker_service.grpc.pb.h"
#include "gtest/gtest.h"
#include "worker/agent.h"

namespace cadre {
namespace agent_test {

using cadre::v1::Assignment;
using cadre::v1::DesiredRun;
using cadre::v1::EndedState;
using cadre::v1::SyncRequest;
using cadre::v1::SyncResponse;

// A coordinator that answers what the test says. Everything is waited for by
// condition, never by time.
class ScriptedCoordinator final : public cadre::v1::WorkerService::Service {
 public:
  using Answer = std::function<absl::Status(const SyncRequest&, SyncResponse*)>;

  // `address` of a former instance, or "127.0.0.1:0".
  explicit ScriptedCoordinator(const std::string& address = "127.0.0.1:0") {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~ScriptedCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  const std::string& address() const { return address_; }

  grpc::Status Sync(grpc::ServerContext*, const SyncRequest* request,
                    SyncResponse* response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(*request);
    changed_.notify_all();
    response->set_generation(generation_);
    response->set_cluster_uuid("cluster");
    response->mutable_next_sync()->set_nanos(5'000'000);
    return ToGrpcStatus(answer_(*request, response));
  }

  void SetAnswer(Answer answer) {
    std::lock_guard<std::mutex> lock(mutex_);
    answer_ = std::move(answer);
  }
  void SetGeneration(int64_t generation) {
    std::lock_guard<std::mutex> lock(mutex_);
    generation_ = generation;
  }

  // The first request from now on (or since the last WaitFor) that fits.
  SyncRequest WaitFor(const std::function<bool(const SyncRequest&)>& fits) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (!requests_.empty()) {
        SyncRequest request = std::move(requests_.front());
        requests_.pop_front();
        if (fits(request)) return request;
      }
      changed_.wait(lock);
    }
  }
  // `n` more requests, the last one is returned.
  SyncRequest WaitForNext(int n = 1) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      requests_.clear();
    }
    return WaitFor([&n](const SyncRequest&) { return --n == 0; });
  }

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SyncRequest> requests_;
  int64_t generation_ = 1;
  Answer answer_ = [](const SyncRequest&, SyncResponse* response) {
    response->mutable_idle();
    return absl::OkStatus();
  };
};

inline SyncResponse RunResponse(int64_t epoch, DesiredRun::Target target,
                                bool with_assignment,
                                const std::string& job = "jobs/a") {
  SyncResponse response;
  DesiredRun* run = response.mutable_run();
  run->set_attempt_epoch(epoch);
  run->set_assignment_digest(absl::StrCat(job, "#", epoch));
  run->set_target(target);
  if (with_assignment) {
    run->mutable_assignment()->set_job(job);
    run->mutable_assignment()->set_attempt_epoch(epoch);
    run->mutable_assignment()->mutable_plan()->set_world_size(1);
  }
  return response;
}

// Keeps what the coordinator script has set, adds the desired state.
inline ScriptedCoordinator::Answer Want(SyncResponse desired) {
  return [desired](const SyncRequest&, SyncResponse* response) {
    response->MergeFrom(desired);
    return absl::OkStatus();
  };
}

inline ScriptedCoordinator::Answer WantRun(int64_t epoch,
                                           DesiredRun::Target target,
                                           const std::string& job = "jobs/a") {
  return [=](const SyncRequest& request, SyncResponse* response) {
    const std::string digest = absl::StrCat(job, "#", epoch);
    response->MergeFrom(
        RunResponse(epoch, target, request.assignment_digest() != digest, job));
    return absl::OkStatus();
  };
}

inline EndedState Ended(EndedState::Result result) {
  EndedState ended;
  ended.set_result(result);
  return ended;
}

// Waits for orders and ends as told.
inline void ObedientSession(const Assignment&, SessionLink* link) {
  link->SetReady();
  const auto first = link->Wait(DesiredRun::TARGET_TRAIN, absl::Hours(1));
  if (first == SessionLink::Wake::kTarget) {
    link->SetPhase("train");
    link->SetStepsDone();
    const auto second = link->Wait(DesiredRun::TARGET_EXPORT, absl::Hours(1));
    if (second == SessionLink::Wake::kTarget) {
      return link->SetEnded(Ended(EndedState::RESULT_DONE));
    }
  }
  link->SetEnded(Ended(link->stop_mode() == cadre::v1::STOP_MODE_NOW
                           ? EndedState::RESULT_ABORTED
                           : EndedState::RESULT_STOPPED));
}

class AgentTest : public ::testing::Test {
 protected:
  void StartAgent(SessionBody body) {
    AgentOptions options;
    options.worker_id = "host.0";
    options.incarnation = "incarnation-1";
    options.build = "test";
    options.device.set_backend("cpu");
    options.min_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(20);
    options.clock = &clock_;
    options.stuck_limit = absl::Seconds(30);
    options.on_stuck = [this] { stuck_.Notify(); };
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 20);
    agent_ = std::make_unique<Agent>(
        options,
        grpc::CreateCustomChannel(coordinator_->address(),
                                  grpc::InsecureChannelCredentials(),
                                  arguments),
        std::move(body), &metrics_);
    agent_->Start();
  }

  FakeClock clock_;
  MetricsRegistry registry_;
  WorkerMetrics metrics_{&registry_, {.worker = "host.0"}};
  // Before agent_: its session's thread uses them.
  absl::Notification release_, stuck_;
  std::unique_ptr<ScriptedCoordinator> coordinator_ =
      std::make_unique<ScriptedCoordinator>();
  std::unique_ptr<Agent> agent_;
};

}  // namespace agent_test
}  // namespace cadre

#endif  // CADRE_WORKER_AGENT_FIXTURE_H_
