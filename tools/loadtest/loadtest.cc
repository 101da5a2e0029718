// Simulated workers and clients against a running coordinator:
//   loadtest --address 127.0.0.1:8470 --job job.yaml --base-dir DIR
// prints latencies of CreateJob, Sync and ListJobs. Workers call Sync once a
// second; they report a backend that no job asks for, so that they stay idle
// and a call costs what a heartbeat costs. run.py starts the coordinator and
// measures it.

#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/ids.h"
#include "base/rpc/channel.h"
#include "base/rpc/grpc_status.h"
#include "cadre/v1/job_service.grpc.pb.h"
#include "cadre/v1/worker_service.grpc.pb.h"

namespace cadre {
namespace {

using Clock = std::chrono::steady_clock;

// Latencies of one kind of call. Thread-safe.
class Latencies {
 public:
  explicit Latencies(std::string name) : name_(std::move(name)) {}
  void Add(Clock::duration taken, const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status.ok()) {
      if (++errors_ == 1) first_error_ = FromGrpcStatus(status).ToString();
      return;
    }
    milliseconds_.push_back(
        std::chrono::duration<double, std::milli>(taken).count());
  }
  void Clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    milliseconds_.clear();
    errors_ = 0;
  }
  void Print() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::sort(milliseconds_.begin(), milliseconds_.end());
    const auto at = [this](double share) {
      if (milliseconds_.empty()) return 0.0;
      return milliseconds_[static_cast<size_t>(
          share * static_cast<double>(milliseconds_.size() - 1))];
    };
    std::cout << absl::StrFormat(
        "%-10s %7d calls %5d errors  p50 %7.2f  p95 %7.2f  p99 %7.2f  max "
        "%8.2f ms\n",
        name_, milliseconds_.size(), errors_, at(.5), at(.95), at(.99), at(1));
    if (errors_ > 0) std::cout << "  first error: " << first_error_ << "\n";
  }

 private:
  const std::string name_;
  std::mutex mutex_;
  std::vector<double> milliseconds_;
  int errors_ = 0;
  std::string first_error_;
};

// Calls under way, to be waited for at the end.
class InFlight {
 public:
  void Begin() { ++count_; }
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait_for(lock, std::chrono::seconds(30),
                   [this] { return count_ == 0; });
  }

 private:
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::condition_variable none_;
};

template <typename Request, typename Response>
struct Call {
  grpc::ClientContext context;
  Request request;
  Response response;
  Clock::time_point start;
};

struct Args {
  std::string address = "127.0.0.1:8470";
  std::string job, base_dir;
  int workers = 1000, rate = 100, seconds = 60, fill = 0, lists = 200;
};

class LoadTest {
 public:
  LoadTest(const Args& args, std::string yaml)
      : args_(args), yaml_(std::move(yaml)) {
    for (int i = 0; i < 8; ++i) {
      auto channel = OpenChannel({.address = args.address, .insecure = true});
      if (!channel.ok()) {
        std::cerr << channel.status().ToString() << "\n";
        std::exit(1);
      }
      jobs_.push_back(v1::JobService::NewStub(*channel));
      sync_.push_back(v1::WorkerService::NewStub(*channel));
    }
  }

  void SyncOnce(int worker) {
    auto* call = new Call<v1::SyncRequest, v1::SyncResponse>;
    v1::SyncRequest& request = call->request;
    request.set_worker_id(absl::StrCat("load.", worker));
    request.set_incarnation(absl::StrCat("one-", worker));
    request.set_protocol_version(1);
    request.mutable_device()->set_backend("simulated");
    request.mutable_device()->set_hostname(absl::StrCat("h", worker / 8));
    request.mutable_idle();
    Start(call);
    sync_[worker % sync_.size()]->async()->Sync(
        &call->context, &call->request, &call->response,
        [this, call](const grpc::Status& status) {
          Finish(call, status, &syncs);
        });
  }

  void CreateOnce(int number) {
    auto* call = new Call<v1::CreateJobRequest, v1::CreateJobResponse>;
    call->request.set_request_id(IdSource::Random()->Uuid());
    call->request.set_job_yaml(yaml_);
    call->request.set_base_dir(args_.base_dir);
    Start(call);
    jobs_[number % jobs_.size()]->async()->CreateJob(
        &call->context, &call->request, &call->response,
        [this, call](const grpc::Status& status) {
          if (status.ok()) Remember(call->response.job().name());
          Finish(call, status, &creates);
        });
  }

  // Sends at even times; what a call takes does not delay the next.
  void Run() {
    for (int w = 0; w < args_.workers; ++w) SyncOnce(w);  // registration
    in_flight_.Wait();
    syncs.Clear();
    const auto begin = Clock::now();
    const int64_t ticks = int64_t{args_.seconds} * 1000;
    int64_t synced = 0, created = 0;
    for (int64_t tick = 0; tick < ticks; ++tick) {
      std::this_thread::sleep_until(begin + std::chrono::milliseconds(tick));
      for (; synced * 1000 < tick * args_.workers; ++synced) {
        SyncOnce(static_cast<int>(synced % args_.workers));
      }
      for (; created * 1000 < tick * args_.rate; ++created) {
        CreateOnce(static_cast<int>(created));
      }
    }
    in_flight_.Wait();
  }

  // Creates and cancels jobs, a few at a time, until `fill` have ended.
  void Fill() {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 16; ++t) {
      threads.emplace_back([this, &next, t] {
        auto& stub = jobs_[t % jobs_.size()];
        while (true) {
          const int number = next++;
          std::string name = Taken();
          if (name.empty() && number >= args_.fill) return;
          grpc::ClientContext create_context, context;
          if (name.empty()) {
            v1::CreateJobRequest create;
            create.set_request_id(IdSource::Random()->Uuid());
            create.set_job_yaml(yaml_);
            create.set_base_dir(args_.base_dir);
            v1::CreateJobResponse created;
            if (!stub->CreateJob(&create_context, create, &created).ok()) {
              continue;
            }
            name = created.job().name();
          }
          v1::CancelJobRequest cancel;
          cancel.set_name(name);
          v1::CancelJobResponse cancelled;
          stub->CancelJob(&context, cancel, &cancelled);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void List(int page) {
    Latencies lists(absl::StrCat("List ", page));
    for (int i = 0; i < args_.lists; ++i) {
      grpc::ClientContext context;
      v1::ListJobsRequest request;
      request.set_page_size(page);
      v1::ListJobsResponse response;
      const auto start = Clock::now();
      const grpc::Status status =
          jobs_[0]->ListJobs(&context, request, &response);
      lists.Add(Clock::now() - start, status);
    }
    lists.Print();
  }

 private:
  template <typename C>
  void Start(C* call) {
    in_flight_.Begin();
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::seconds(10));
    call->start = Clock::now();
  }
  template <typename C>
  void Finish(C* call, const grpc::Status& status, Latencies* latencies) {
    latencies->Add(Clock::now() - call->start, status);
    delete call;
    in_flight_.End();
  }
  void Remember(const std::string& name) {
    std::lock_guard<std::mutex> lock(names_mutex_);
    names_.push_back(name);
  }
  std::string Taken() {
    std::lock_guard<std::mutex> lock(names_mutex_);
    if (names_.empty()) return "";
    std::string name = names_.back();
    names_.pop_back();
    return name;
  }

  const Args args_;
  const std::string yaml_;
  std::vector<std::unique_ptr<v1::JobService::Stub>> jobs_;
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> sync_;
  InFlight in_flight_;
  std::mutex names_mutex_;
  std::vector<std::string> names_;

 public:
  Latencies syncs{"Sync"}, creates{"CreateJob"};
};

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Load on a coordinator by simulated workers and clients.");
  cadre::Args args;
  app.add_option("--address", args.address, "Coordinator");
  app.add_option("--job", args.job, "Job file to submit")->required();
  app.add_option("--base-dir", args.base_dir, "Its relative paths start here");
  app.add_option("--workers", args.workers,
                 "Simulated workers, 1 Sync a second");
  app.add_option("--rate", args.rate, "CreateJob calls a second");
  app.add_option("--seconds", args.seconds, "Length of the load");
  app.add_option("--fill", args.fill, "Then so many ended jobs more");
  app.add_option("--lists", args.lists, "Then so many ListJobs calls a size");
  CLI11_PARSE(app, argc, argv);
  std::ifstream file(args.job);
  const std::string yaml{std::istreambuf_iterator<char>(file), {}};
  cadre::LoadTest test(args, yaml);
  test.Run();
  test.syncs.Print();
  test.creates.Print();
  std::cout.flush();
  test.Fill();
  if (args.lists > 0) {
    test.List(50);
    test.List(1000);
  }
  return 0;
}
