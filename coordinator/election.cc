#include "coordinator/election.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace cadre::coordinator {
namespace {

constexpr char kDefaultKey[] = "/cadre/coordinator";
constexpr absl::Duration kDefaultTtl = absl::Seconds(5);
constexpr absl::Duration kShortestTtl = absl::Seconds(2);
constexpr absl::Duration kLongestTtl = absl::Minutes(1);
// How often one that waits asks for the key.
constexpr absl::Duration kAskEvery = absl::Milliseconds(300);
// Clocks of two machines do not run at quite the same speed.
constexpr double kDrift = 0.9;

absl::StatusOr<absl::Duration> TtlOf(const config::v1::Election& config) {
  if (config.lease_ttl().empty()) return kDefaultTtl;
  absl::Duration ttl;
  if (!absl::ParseDuration(config.lease_ttl(), &ttl) || ttl < kShortestTtl ||
      ttl > kLongestTtl || ttl % absl::Seconds(1) != absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("election.lease_ttl is '", config.lease_ttl(),
                     "'; write whole seconds from 2s to 60s, for example 5s"));
  }
  return ttl;
}

}  // namespace

absl::Status Election::CheckConfig(const config::v1::Election& config) {
  CADRE_RETURN_IF_ERROR(TtlOf(config).status());
  return Etcd::Connect({.endpoints = {config.endpoints().begin(),
                                      config.endpoints().end()},
                        .ca_file = config.ca_file(),
                        .certificate_file = config.certificate_file(),
                        .key_file = config.key_file()})
      .status();
}

absl::StatusOr<std::unique_ptr<Election>> Election::Make(
    const ElectionOptions& options) {
  const config::v1::Election& config = options.config;
  CADRE_ASSIGN_OR_RETURN(const absl::Duration ttl, TtlOf(config));
  CADRE_ASSIGN_OR_RETURN(
      std::unique_ptr<Etcd> etcd,
      Etcd::Connect(
          {.endpoints = {config.endpoints().begin(), config.endpoints().end()},
           .ca_file = config.ca_file(),
           .certificate_file = config.certificate_file(),
           .key_file = config.key_file()}));
  return std::unique_ptr<Election>(new Election(options, ttl, std::move(etcd)));
}

Election::Election(const ElectionOptions& options, absl::Duration ttl,
                   std::unique_ptr<Etcd> etcd)
    : options_(options),
      ttl_(ttl),
      key_(options.config.key().empty() ? kDefaultKey : options.config.key()),
      etcd_(std::move(etcd)) {}

Election::~Election() { Resign(); }

bool Election::Holds() const {
  return absl::ToInt64Nanoseconds(options_.clock->Monotonic()) <
         held_until_ns_.load();
}

absl::StatusOr<int64_t> Election::Campaign(const std::atomic<bool>* stop) {
  absl::Status told;
  std::string holder;
  absl::Duration asked;  // when the lease was last certainly alive
  while (!*stop) {
    const absl::Duration now = options_.clock->Monotonic();
    absl::Status status;
    if (lease_ == 0) {
      auto lease = etcd_->GrantLease(ttl_, ttl_ / 2);
      status = lease.status();
      if (lease.ok()) {
        lease_ = *lease;
        asked = now;
      }
    } else if (now - asked > ttl_ / 3) {
      status = etcd_->KeepAlive(lease_, ttl_ / 2);
      if (status.ok()) asked = now;
    }
    if (status.ok()) {
      auto claim = etcd_->Claim(key_, options_.name, lease_, ttl_ / 2);
      status = claim.status();
      if (claim.ok() && claim->won) {
        held_until_ns_ = absl::ToInt64Nanoseconds(asked + ttl_ * kDrift);
        if (Holds()) {
          renewer_ = std::thread([this] { Renew(); });
          CADRE_LOG(INFO) << "election: active, term " << claim->term;
          return claim->term;
        }
        // Too slow: the lease may be over by now.
        held_until_ns_ = 0;
        status = absl::DeadlineExceededError("winning took too long");
      } else if (claim.ok() && claim->holder != holder) {
        holder = claim->holder;
        CADRE_LOG(INFO) << "election: " << holder << " is active, waiting";
      }
    }
    if (!status.ok()) {
      // Otherwise the same lease goes on: the key may be ours already, and only
      // the answer lost.
      if (absl::IsNotFound(status)) lease_ = 0;
      if (status != told) {
        told = status;
        CADRE_LOG(WARNING) << "election: " << status.ToString()
                           << "; asking on";
      }
    }
    absl::SleepFor(kAskEvery);
  }
  return absl::CancelledError("stopped while waiting to become active");
}

void Election::Renew() {
  absl::Status last;
  std::unique_lock<std::mutex> lock(mutex_);
  // Often enough that one lost answer costs nothing.
  const absl::Duration every = ttl_ / 4;
  while (!wake_.wait_for(lock, absl::ToChronoMilliseconds(every),
                         [this] { return stopping_; })) {
    lock.unlock();
    const absl::Duration sent = options_.clock->Monotonic();
    const absl::Status renewed = etcd_->KeepAlive(lease_, every);
    lock.lock();
    if (renewed.ok()) {
      held_until_ns_ = absl::ToInt64Nanoseconds(sent + ttl_ * kDrift);
      continue;
    }
    if (renewed != last) {
      last = renewed;
      CADRE_LOG(WARNING) << "election: the lease was not renewed: "
                         << renewed.ToString();
    }
    if (Holds() && !absl::IsNotFound(renewed)) continue;
    held_until_ns_ = 0;
    if (stopping_) return;
    lock.unlock();
    options_.on_lost(renewed);
    return;
  }
}

void Election::Resign() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (renewer_.joinable()) renewer_.join();
  const bool held = held_until_ns_.exchange(0) != 0;
  if (!held && lease_ == 0) return;
  const absl::Status revoked =
      etcd_->Revoke(std::exchange(lease_, 0), absl::Seconds(1));
  if (!revoked.ok()) {
    CADRE_LOG(WARNING) << "election: the key stays until its lease ends: "
                       << revoked.ToString();
  }
}

}  // namespace cadre::coordinator
