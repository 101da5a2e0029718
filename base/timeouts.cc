#include "base/timeouts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/config/v1/coordinator.pb.h"

namespace cadre {
namespace {

absl::Status Require(bool holds, absl::string_view name, absl::Duration value,
                     absl::string_view rule, absl::Duration bound) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "timeouts: ", name, " is ", absl::FormatDuration(value), " but must be ",
      rule, ", which is ", absl::FormatDuration(bound)));
}

absl::Status Read(const std::string& text, absl::string_view name,
                  absl::Duration* value) {
  if (text.empty() || absl::ParseDuration(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("timeouts: ", name, ": '", text,
                   "' is not a duration; write for example 500ms, 10s or 15m"));
}

}  // namespace

absl::Status CheckOrder(const Timeouts& t) {
  const absl::Duration zero = absl::ZeroDuration();
  CADRE_RETURN_IF_ERROR(Require(t.sync_interval > zero, "sync_interval",
                                t.sync_interval, "more than nothing", zero));
  CADRE_RETURN_IF_ERROR(Require(t.sync_deadline > t.sync_interval,
                                "sync_deadline", t.sync_deadline,
                                "above sync_interval", t.sync_interval));
  CADRE_RETURN_IF_ERROR(Require(t.abort_grace > t.sync_deadline, "abort_grace",
                                t.abort_grace, "above sync_deadline",
                                t.sync_deadline));
  CADRE_RETURN_IF_ERROR(Require(t.lease_ttl >= 3 * t.sync_deadline, "lease_ttl",
                                t.lease_ttl, "at least 3 x sync_deadline",
                                3 * t.sync_deadline));
  CADRE_RETURN_IF_ERROR(Require(t.lease_ttl > t.abort_grace, "lease_ttl",
                                t.lease_ttl, "above abort_grace",
                                t.abort_grace));
  CADRE_RETURN_IF_ERROR(
      Require(t.collective_timeout > t.abort_grace + t.lease_ttl,
              "collective_timeout", t.collective_timeout,
              "above abort_grace + lease_ttl", t.abort_grace + t.lease_ttl));
  CADRE_RETURN_IF_ERROR(Require(t.step_timeout >= 2 * t.collective_timeout,
                                "step_timeout", t.step_timeout,
                                "at least 2 x collective_timeout",
                                2 * t.collective_timeout));
  CADRE_RETURN_IF_ERROR(Require(t.rendezvous_timeout > t.step_timeout,
                                "rendezvous_timeout", t.rendezvous_timeout,
                                "above step_timeout", t.step_timeout));
  CADRE_RETURN_IF_ERROR(Require(
      t.checkpoint_timeout > t.rendezvous_timeout, "checkpoint_timeout",
      t.checkpoint_timeout, "above rendezvous_timeout", t.rendezvous_timeout));
  CADRE_RETURN_IF_ERROR(
      Require(t.drain_deadline > t.step_timeout + t.checkpoint_timeout,
              "drain_deadline", t.drain_deadline,
              "above step_timeout + checkpoint_timeout",
              t.step_timeout + t.checkpoint_timeout));
  CADRE_RETURN_IF_ERROR(
      Require(t.stop_grace >= t.drain_deadline + absl::Seconds(30),
              "stop_grace", t.stop_grace, "at least drain_deadline + 30s",
              t.drain_deadline + absl::Seconds(30)));
  CADRE_RETURN_IF_ERROR(Require(t.orphan_limit > t.stop_grace, "orphan_limit",
                                t.orphan_limit, "above stop_grace",
                                t.stop_grace));
  return Require(t.start_timeout > t.rendezvous_timeout, "start_timeout",
                 t.start_timeout, "above rendezvous_timeout",
                 t.rendezvous_timeout);
}

absl::StatusOr<Timeouts> ReadTimeouts(const config::v1::Timeouts& config) {
  Timeouts t;
#define CADRE_READ_TIMEOUT(field) \
  CADRE_RETURN_IF_ERROR(Read(config.field(), #field, &t.field))
  CADRE_READ_TIMEOUT(sync_interval);
  CADRE_READ_TIMEOUT(sync_deadline);
  CADRE_READ_TIMEOUT(abort_grace);
  CADRE_READ_TIMEOUT(lease_ttl);
  CADRE_READ_TIMEOUT(collective_timeout);
  CADRE_READ_TIMEOUT(step_timeout);
  CADRE_READ_TIMEOUT(rendezvous_timeout);
  CADRE_READ_TIMEOUT(checkpoint_timeout);
  CADRE_READ_TIMEOUT(drain_deadline);
  CADRE_READ_TIMEOUT(stop_grace);
  CADRE_READ_TIMEOUT(orphan_limit);
  CADRE_READ_TIMEOUT(start_timeout);
#undef CADRE_READ_TIMEOUT
  CADRE_RETURN_IF_ERROR(CheckOrder(t));
  return t;
}

}  // namespace cadre
