#include "worker/session_link.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "plan/placement_proto.h"

namespace cadre {

using cadre::v1::EndedState;
using cadre::v1::Report;
using cadre::v1::StopMode;
using cadre::v1::SyncRequest;

namespace {

// How often a wait looks whether the coordinator is still connected: the time
// it is away does not count.
constexpr std::chrono::milliseconds kWaitSlice(100);

}  // namespace

SessionLink::SessionLink(int64_t attempt_epoch, ReportBuffer* reports,
                         std::function<void()> changed)
    : attempt_epoch_(attempt_epoch),
      reports_(reports),
      changed_(std::move(changed)) {
  state_.mutable_preparing();
}

SessionLink::~SessionLink() {
  if (aborter_.joinable()) aborter_.join();
}

template <typename Change>
void SessionLink::Update(bool announce, Change change) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_.has_ended()) return;
    change();
  }
  if (announce) changed_();
}

void SessionLink::SetPreparing(const std::string& stage, int64_t done,
                               int64_t total) {
  Update(false, [&] {
    auto* preparing = state_.mutable_preparing();
    preparing->set_stage(stage);
    preparing->set_done(done);
    preparing->set_total(total);
  });
}

void SessionLink::SetReady() {
  Update(true, [&] { state_.mutable_ready(); });
}

void SessionLink::SetPhase(const std::string& phase) {
  bool first = false;
  Update(false, [&] {
    first = !state_.has_running();
    state_.mutable_running()->set_phase(phase);
  });
  if (first) changed_();
}

void SessionLink::SetProgress(const cadre::v1::Progress& progress) {
  Update(false,
         [&] { *state_.mutable_running()->mutable_progress() = progress; });
}

void SessionLink::SetStepsDone() {
  Update(true, [&] { state_.mutable_running()->set_steps_done(true); });
}

void SessionLink::SetPlacement(
    std::shared_ptr<const ExpertPlacement> placement) {
  Update(false, [&] {
    placement_ = std::move(placement);
    if (wanted_ != nullptr && wanted_->plan_epoch <= placement_->plan_epoch) {
      wanted_.reset();
    }
  });
}

std::shared_ptr<const ExpertPlacement> SessionLink::WantedPlacement() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return wanted_;
}

void SessionLink::SetEnded(const EndedState& ended) {
  Update(true, [&] {
    before_end_ = state_;
    if (before_end_.has_running()) {
      before_end_.mutable_running()->set_step(ended.step());
    }
    *state_.mutable_ended() = ended;
  });
}

void SessionLink::AddReport(Report report) {
  report.set_attempt_epoch(attempt_epoch_);
  reports_->Add(std::move(report));
}

void SessionLink::Publish(const std::string& key, const std::string& value) {
  Update(true, [&] { published_[key] = value; });
}

int64_t SessionLink::published_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [key, value] : published_) {
    bytes += static_cast<int64_t>(key.size() + value.size());
  }
  return bytes;
}

std::optional<StopMode> SessionLink::stop_mode() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

std::string SessionLink::stop_reason() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_reason_;
}

void SessionLink::Attach(EngineHooks hooks) {
  std::lock_guard<std::mutex> lock(mutex_);
  hooks_ = std::move(hooks);
  if (stop_ == cadre::v1::STOP_MODE_NOW) StartAbort();
}

void SessionLink::Detach() {
  std::thread aborter;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A counter that fell back would look like a rank that stalls.
    if (state_.has_running()) ReadHooks(state_.mutable_running());
    hooks_ = {};
    aborter = std::move(aborter_);
  }
  if (aborter.joinable()) aborter.join();
}

void SessionLink::ReadHooks(cadre::v1::RunningState* running) const {
  if (hooks_.step) running->set_step(hooks_.step());
  if (hooks_.collective_seq) {
    running->set_collective_seq(hooks_.collective_seq());
  }
}

void SessionLink::StartAbort() {
  if (!hooks_.abort) return;
  aborter_ = std::thread(std::exchange(hooks_.abort, nullptr));
}

std::optional<SealRequest> SessionLink::TakeSeal() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(seal_, std::nullopt);
}

std::vector<std::string> SessionLink::TakeRemovals() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(removals_, {});
}

SessionLink::Wake SessionLink::Wait(std::optional<Target> target,
                                    absl::Duration limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::chrono::nanoseconds left = absl::ToChronoNanoseconds(limit);
  for (;;) {
    if (stop_ == cadre::v1::STOP_MODE_NOW) return Wake::kStopNow;
    if (seal_) return Wake::kSeal;
    if (target && stop_) return Wake::kStopCheckpoint;
    if (target && target_ >= *target) return Wake::kTarget;
    if (left.count() <= 0) return Wake::kDeadline;
    const auto begin = std::chrono::steady_clock::now();
    wake_.wait_for(lock, std::min<std::chrono::nanoseconds>(left, kWaitSlice));
    if (connected_) left -= std::chrono::steady_clock::now() - begin;
  }
}

absl::StatusOr<std::string> SessionLink::WaitForValue(const std::string& key,
                                                      absl::Duration limit) {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait_until(lock, deadline, [&] {
    return stop_ == cadre::v1::STOP_MODE_NOW || values_.count(key) > 0;
  });
  if (stop_ == cadre::v1::STOP_MODE_NOW) {
    return absl::AbortedError(
        absl::StrCat("rendezvous: told to stop: ", stop_reason_));
  }
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return absl::DeadlineExceededError(
        absl::StrCat("rendezvous: no peer published '", key, "' within ",
                     absl::FormatDuration(limit)));
  }
  return it->second;
}

void SessionLink::FillState(SyncRequest* request) const {
  std::lock_guard<std::mutex> lock(mutex_);
  request->set_attempt_epoch(attempt_epoch_);
  const bool hold_end = HoldsEnd();
  if (stop_ && (hold_end || !state_.has_ended())) {
    request->mutable_stopping()->set_mode(*stop_);
    return;
  }
  const SyncRequest& state = hold_end ? before_end_ : state_;
  switch (state.state_case()) {
    case SyncRequest::kReady:
      *request->mutable_ready() = state.ready();
      request->mutable_ready()->mutable_published()->insert(published_.begin(),
                                                            published_.end());
      break;
    case SyncRequest::kRunning:
      *request->mutable_running() = state.running();
      request->mutable_running()->mutable_published()->insert(
          published_.begin(), published_.end());
      ReadHooks(request->mutable_running());
      if (placement_ != nullptr) {
        const int64_t in_force = placement_->plan_epoch;
        request->mutable_running()->set_plan_epoch(in_force);
        request->mutable_running()->set_prepared_plan_epoch(
            wanted_ == nullptr ? in_force : wanted_->plan_epoch);
      }
      break;
    case SyncRequest::kEnded:
      *request->mutable_ended() = state.ended();
      break;
    default:
      *request->mutable_preparing() = state.preparing();
      request->mutable_preparing()->mutable_published()->insert(
          published_.begin(), published_.end());
  }
}

bool SessionLink::HoldsEnd() const {
  if (!state_.has_ended()) return false;
  const EndedState::Result result = state_.ended().result();
  return (result == EndedState::RESULT_DONE ||
          result == EndedState::RESULT_STOPPED) &&
         !reports_->empty();
}

void SessionLink::SetTarget(Target target) {
  std::lock_guard<std::mutex> lock(mutex_);
  target_ = std::max(target_, target);
  wake_.notify_all();
}

void SessionLink::SetRendezvous(const cadre::v1::Rendezvous& rendezvous) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, value] : rendezvous.values()) values_[key] = value;
  wake_.notify_all();
}

void SessionLink::RequestStop(StopMode mode, const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_ == cadre::v1::STOP_MODE_NOW || stop_ == mode) return;
  stop_ = mode;
  stop_reason_ = reason;
  if (mode == cadre::v1::STOP_MODE_NOW) StartAbort();
  wake_.notify_all();
}

void SessionLink::RequestSeal(SealRequest request) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The coordinator repeats itself until the answer is committed.
  if (request.step == last_seal_step_) return;
  last_seal_step_ = request.step;
  seal_ = std::move(request);
  wake_.notify_all();
}

void SessionLink::RequestRemovals(const std::vector<std::string>& folders) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::string& folder : folders) {
    if (std::find(removals_.begin(), removals_.end(), folder) ==
        removals_.end()) {
      removals_.push_back(folder);
    }
  }
}

void SessionLink::RequestPlacement(
    const cadre::v1::ExpertPlacement& placement) {
  // Without layers it only repeats what this rank said it holds.
  if (placement.layers_size() == 0) return;
  absl::StatusOr<ExpertPlacement> made = FromProto(placement);
  bool refused = false;
  std::string why;
  bool taken = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t epoch = placement.plan_epoch();
    // Before the first step it is repeated: what is in force is not known yet.
    if (placement_ == nullptr || epoch == refused_plan_epoch_) return;
    const int64_t known =
        std::max(placement_->plan_epoch,
                 wanted_ == nullptr ? int64_t{0} : wanted_->plan_epoch);
    if (placement.attempt_epoch() != attempt_epoch_) {
      why = absl::StrCat("it belongs to attempt ", placement.attempt_epoch());
    } else if (epoch < known) {
      why = absl::StrCat("placement ", known, " is known already");
    } else if (epoch == known) {
      return;  // the coordinator repeats itself until it hears of it
    } else if (!made.ok()) {
      why = std::string(made.status().message());
    } else if (!(made->shape == placement_->shape)) {
      why = "it has other layers, experts, ranks or slots";
    }
    refused = !why.empty();
    if (refused) {
      refused_plan_epoch_ = epoch;
    } else {
      wanted_ = std::make_shared<ExpertPlacement>(*std::move(made));
      taken = true;
    }
  }
  if (refused) {
    CADRE_LOG(WARNING) << "attempt " << attempt_epoch_ << ": expert placement "
                       << placement.plan_epoch() << " is refused: " << why;
  }
  if (taken) changed_();
}

void SessionLink::SetConnected(bool connected) {
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = connected;
  wake_.notify_all();
}

bool SessionLink::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_.has_ended();
}

cadre::v1::FailureCause SessionLink::cause() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_.ended().cause();
}

}  // namespace cadre
