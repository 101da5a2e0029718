#include "coordinator/watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "coordinator/api_error.h"
#include "coordinator/job.h"

namespace cadre::coordinator {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(1);
constexpr absl::Duration kHeartbeatInterval = absl::Seconds(15);
// Progress and heartbeats are looked at this often.
constexpr absl::Duration kPoll = absl::Milliseconds(250);
constexpr int kEventsPerRead = 64;

}  // namespace

struct WatchHub::Watch {
  v1::WatchJobRequest request;
  WatchSink* sink = nullptr;
  std::atomic<bool> ready{true};
  std::atomic<bool> cancelled{false};
  // The hub thread's own.
  bool started = false;
  int64_t cursor = 0;
  std::deque<v1::Event> pending;
  absl::Duration last_sent;
  absl::Duration last_progress;
  int64_t progress_step = -1;
};

WatchHub::WatchHub(const JobTable* table, Clock* clock, Database reader)
    : table_(table),
      clock_(clock),
      reader_(std::move(reader)),
      store_(&reader_),
      thread_([this] { Run(); }) {}

WatchHub::~WatchHub() { Stop(); }

void WatchHub::Add(const v1::WatchJobRequest& request, WatchSink* sink) {
  auto watch = std::make_shared<Watch>();
  watch->request = request;
  watch->sink = sink;
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t key = next_key_++;
  sink->key = key;
  if (stopping_) {
    lock.unlock();
    // The thread is gone or going; nobody else can call the sink.
    sink->End(WithRetry(Error(absl::StatusCode::kUnavailable, "DRAINING",
                              "the coordinator is shutting down"),
                        absl::Seconds(1)));
    return;
  }
  watches_[key] = std::move(watch);
  wake_ = true;
  woken_.notify_one();
}

void WatchHub::Ready(int64_t key) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto it = watches_.find(key);
  if (it != watches_.end()) it->second->ready = true;
  wake_ = true;
  woken_.notify_one();
}

void WatchHub::Cancel(int64_t key) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto it = watches_.find(key);
  if (it != watches_.end()) it->second->cancelled = true;
  wake_ = true;
  woken_.notify_one();
}

void WatchHub::Wake() {
  std::unique_lock<std::mutex> lock(mutex_);
  wake_ = true;
  woken_.notify_one();
}

void WatchHub::Stop() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    stopping_ = true;
    woken_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void WatchHub::Run() {
  while (true) {
    std::vector<std::pair<int64_t, std::shared_ptr<Watch>>> due;
    bool stopping;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      woken_.wait_for(lock, absl::ToChronoMilliseconds(kPoll),
                      [this] { return wake_ || stopping_; });
      wake_ = false;
      stopping = stopping_;
      due.assign(watches_.begin(), watches_.end());
      if (stopping) watches_.clear();
    }
    for (auto& [key, watch] : due) {
      if (stopping) {
        watch->sink->End(
            WithRetry(Error(absl::StatusCode::kUnavailable, "DRAINING",
                            "the coordinator is shutting down; watch again "
                            "after the last sequence"),
                      absl::Seconds(1)));
      } else if (!Advance(key, *watch)) {
        std::unique_lock<std::mutex> lock(mutex_);
        watches_.erase(key);
      }
    }
    if (stopping) return;
  }
}

absl::Status WatchHub::CheckGap(const std::string& id, int64_t after) {
  auto trimmed = store_.TrimmedUpTo(id);
  if (!trimmed.ok()) return trimmed.status();
  // From 0 a watch begins with a snapshot, which stands for what is gone.
  if (after == 0 || after >= *trimmed) return absl::OkStatus();
  return Error(
      absl::StatusCode::kOutOfRange, "SEQUENCE_TRIMMED",
      absl::StrCat("events of jobs/", id, " up to sequence ", *trimmed,
                   " are no longer kept, and you have those up to ", after,
                   ": get the job, then watch after ", *trimmed),
      {{"oldest_sequence", absl::StrCat(*trimmed)}});
}

bool WatchHub::Advance(int64_t key, Watch& watch) {
  if (watch.cancelled) {
    watch.sink->End(absl::CancelledError("the reader has left"));
    return false;
  }
  if (!watch.ready) return true;
  const absl::Duration now = clock_->Monotonic();
  const std::string id = JobId(watch.request.name());
  const RecordPtr record = table_->Find(id);
  if (record == nullptr) {
    watch.sink->End(NoSuchJob(watch.request.name()));
    return false;
  }
  if (watch.request.after_sequence() < 0) {
    watch.sink->End(absl::InvalidArgumentError(
        absl::StrCat("after_sequence is ", watch.request.after_sequence(),
                     "; it must not be negative")));
    return false;
  }
  v1::WatchJobResponse message;
  message.set_state(record->job().state());
  const auto send = [&] {
    watch.ready = false;
    watch.last_sent = now;
    watch.sink->Send(message);
    return true;
  };
  if (!watch.started) {
    watch.started = true;
    watch.cursor = watch.request.after_sequence();
    if (const absl::Status gap = CheckGap(id, watch.cursor); !gap.ok()) {
      watch.sink->End(gap);
      return false;
    }
    if (watch.cursor == 0) {
      *message.mutable_snapshot() = table_->View(*record, false);
      message.set_sequence(record->job().last_sequence());
      return send();
    }
  }
  // Read after the record: whatever it knows of is then in the table.
  if (watch.pending.empty() && watch.cursor < record->job().last_sequence()) {
    auto events = store_.ReadEvents(id, watch.cursor, kEventsPerRead);
    // After the read: what was trimmed before it is then known.
    const absl::Status gap =
        events.ok() ? CheckGap(id, watch.cursor) : events.status();
    if (!gap.ok()) {
      watch.sink->End(gap);
      return false;
    }
    watch.pending.assign(events->begin(), events->end());
  }
  if (!watch.pending.empty()) {
    *message.mutable_event() = std::move(watch.pending.front());
    watch.pending.pop_front();
    watch.cursor = message.event().sequence();
    message.set_sequence(watch.cursor);
    return send();
  }
  if (watch.request.history_only() || IsTerminal(record->job().state())) {
    watch.sink->End(absl::OkStatus());
    return false;
  }
  message.set_sequence(watch.cursor);
  const v1::Job view = table_->View(*record, false);
  if (view.progress().step() != watch.progress_step &&
      record->job().state() == v1::JOB_STATE_RUNNING &&
      (watch.progress_step < 0 ||
       now - watch.last_progress >= kProgressInterval)) {
    watch.progress_step = view.progress().step();
    watch.last_progress = now;
    *message.mutable_progress() = view.progress();
    return send();
  }
  if (now - watch.last_sent >= kHeartbeatInterval) {
    message.mutable_heartbeat();
    return send();
  }
  return true;
}

}  // namespace cadre::coordinator
