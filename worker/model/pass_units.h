#ifndef CADRE_WORKER_MODEL_PASS_UNITS_H_
#define CADRE_WORKER_MODEL_PASS_UNITS_H_

// The order in which passes use the units of a sharded dense base, and their
// calls of UnitAccess; without shards, nothing. Does not own the access. Not
// thread-safe.

#include <vector>

#include "absl/status/status.h"
#include "worker/model/dense_units.h"

namespace cadre {

class PassUnits {
 public:
  struct Shape {
    int num_shards = 1;
    int num_blocks = 0;
    bool tied_head = false;  // the head is the embedding
    bool trains_embedding = false;
  };

  void Plan(const Shape& shape);

  // `access` is null without shards only.
  absl::Status Connect(UnitAccess* access);

  absl::Status Begin(bool training);
  absl::Status Acquire() {
    return access_ == nullptr ? absl::OkStatus() : access_->Acquire();
  }
  absl::Status Release() {
    return access_ == nullptr ? absl::OkStatus() : access_->Release();
  }

 private:
  Shape shape_;
  UnitAccess* access_ = nullptr;
  // The units of a pass without and with a backward pass, in order of use.
  std::vector<UnitStep> forward_, training_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PASS_UNITS_H_
