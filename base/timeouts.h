#ifndef CADRE_BASE_TIMEOUTS_H_
#define CADRE_BASE_TIMEOUTS_H_

// The one table of timeouts. Their order matters (the verdict on a lost worker
// must come before a collective times out, and so on), so every process checks
// it at start. All run on the monotonic clock.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre::config::v1 {
class Timeouts;
}

namespace cadre {

struct Timeouts {
  absl::Duration sync_interval = absl::Seconds(1);         // #1  > 0
  absl::Duration sync_deadline = absl::Seconds(3);         // #2  > #1
  absl::Duration abort_grace = absl::Seconds(5);           // #3  > #2
  absl::Duration lease_ttl = absl::Seconds(10);            // #4  >= 3 #2, > #3
  absl::Duration collective_timeout = absl::Seconds(60);   // #5 > #3 + #4
  absl::Duration step_timeout = absl::Seconds(180);        // #6  >= 2 #5
  absl::Duration rendezvous_timeout = absl::Seconds(300);  // #7  > #6
  absl::Duration checkpoint_timeout = absl::Seconds(900);  // #8  > #7
  absl::Duration drain_deadline = absl::Seconds(1200);     // #9  > #6 + #8
  absl::Duration stop_grace = absl::Seconds(1260);         // #10 >= #9 + 30 s
  absl::Duration orphan_limit = absl::Seconds(1800);       // #11 > #10
  absl::Duration start_timeout = absl::Seconds(3600);      // #12 > #7
};

// INVALID_ARGUMENT names the first pair out of order with both values.
absl::Status CheckOrder(const Timeouts& timeouts);

// Defaults overridden by the fields that are set; checked.
absl::StatusOr<Timeouts> ReadTimeouts(const config::v1::Timeouts& config);

}  // namespace cadre

#endif  // CADRE_BASE_TIMEOUTS_H_
