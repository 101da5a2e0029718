#ifndef CADRE_COORDINATOR_ORDER_H_
#define CADRE_COORDINATOR_ORDER_H_

// The order of a list of jobs: what order_by says, and keys that sort by it. A
// value; thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cadre/state/v1/state.pb.h"

namespace cadre::coordinator {

class JobOrder {
 public:
  // "priority desc, create_time"; empty: newest first. INVALID_ARGUMENT,
  // ORDER_INVALID names the part that is wrong.
  static absl::StatusOr<JobOrder> Parse(absl::string_view text);

  // Newest first and nothing else: no key is needed.
  bool is_newest_first() const { return parts_.empty(); }

  // Of two jobs the one with the lower key comes first; no two have the same.
  // Printable, so that it can stand in a page token.
  std::string Key(const state::v1::JobRecord& record) const;

 private:
  struct Part {
    enum class Field { kCreateTime, kPriority, kName } field;
    bool descending = false;
  };
  explicit JobOrder(std::vector<Part> parts) : parts_(std::move(parts)) {}

  std::vector<Part> parts_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ORDER_H_
