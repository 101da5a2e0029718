#include "worker/comm/peer_failure.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

constexpr char kPayload[] = "cadre/failed_peer";

}  // namespace

absl::Status WithFailedPeer(absl::Status status, int rank) {
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(rank)));
  return status;
}

std::optional<int> FailedPeer(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) {
    return std::nullopt;
  }
  return rank;
}

}  // namespace cadre
